// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"time"
)

// tableName is the table that is ours alone, in family inet. No name in it may be a keyword of nft, or the output of
// `nft list table` could not be loaded again.
const tableName = "natplane"

// The chains; README.md says which hook calls which.
const (
	sourceRanges = "source_ranges"
	translate    = "translate"
	ingressGuard = "ingress_guard"
	localGuard   = "local_guard"
	ingressNAT   = "ingress_nat"
	localNAT     = "local_nat"
	egressNAT    = "egress_nat"
	egressGuard  = "egress_guard"
	leak         = "leak"
)

// setID numbers the sets and maps. Where both families have one, the IPv6 set follows the IPv4 set.
type setID uint8

const (
	port4 setID = iota
	port6
	echo4
	echo6
	whole4
	whole6
	egress4
	egress6
	shard4
	shard6
	public4
	public6
	hosted4
	hosted6
	listed4
	listed6
	elsewhere4
	elsewhere6
	managed4
	managed6
	restricted4
	restricted6
	restrictedEcho4
	restrictedEcho6
	restrictedPort4
	restrictedPort6
	allowed4
	allowed6
	allowedPort4
	allowedPort6
	cluster4
	cluster6
	masquerade4
	masquerade6
	node4
	node6
	shardSources4
	shardSources6
	shardEcho4
	shardEcho6
	parted4
	parted6
	uplinkIf
	workloadIf
	tenantIf
	numSets
)

// of returns the set of a's family, for a set given by its IPv4 member.
func (s setID) of(a netip.Addr) setID {
	if a.Is4() {
		return s
	}
	return s + 1
}

// part is one field of a key or a value.
type part uint8

const (
	address part = iota
	protocol
	port
	link // the name of an interface
)

// setDef defines a set, or a map when there is a value.
type setDef struct {
	name    string
	comment string
	// ipv6 is the family of every address in it.
	ipv6 bool
	key  []part
	// value is empty for a set.
	value []part
	// interval lets elements be ranges of addresses.
	interval bool
	// timeout is after which time the kernel forgets an element; 0: never.
	timeout time.Duration
}

// setDefs returns the definition of every set, indexed by setID.
func setDefs() []setDef {
	addr := []part{address}
	perFamily := []setDef{
		{name: "port", key: []part{address, protocol, port}, value: []part{address, port},
			comment: "PortList: public address, protocol and port -> backend and its port"},
		{name: "echo", key: addr, value: addr, comment: "PortList with allowICMP: public address -> backend of an echo request"},
		{name: "whole", key: addr, value: addr, comment: "WholeIP: public address -> backend"},
		{name: "egress", key: addr, value: addr, comment: "backend -> primary address, which its own connections leave with"},
		{name: "shard", key: []part{link}, value: addr, comment: "uplink -> shard address"},
		{name: "public", key: addr, comment: "every delegated public address of the cluster, and those of the shards"},
		{name: "hosted", key: addr, comment: "public addresses with a backend on this node: what is not translated is dropped"},
		{name: "listed", key: addr, comment: "hosted addresses that forward only what is listed (PortList)"},
		{name: "elsewhere", key: addr, comment: "translated here, backend on another node (externalTrafficPolicy: Cluster)"},
		{name: "managed", key: addr, comment: "backends on this node"},
		{name: "restricted", key: addr, comment: "WholeIP addresses with source ranges"},
		{name: "restricted_echo", key: addr, comment: "PortList addresses with source ranges, for echo requests"},
		{name: "restricted_port", key: []part{address, protocol, port}, comment: "PortList ports with source ranges"},
		{name: "allowed", key: []part{address, address}, interval: true,
			comment: "public address . clients that may connect, for restricted and restricted_echo"},
		{name: "allowed_port", key: []part{address, protocol, port, address}, interval: true,
			comment: "public address . protocol . port . clients that may connect, for restricted_port"},
		{name: "cluster", key: addr, interval: true, comment: "in-cluster destinations, never source-translated"},
		{name: "masquerade", key: addr, interval: true, comment: "sources whose connections to public addresses are masqueraded"},
		{name: "node", key: []part{link}, value: addr, comment: "uplink -> this node's address, which masqueraded connections come from"},
		{name: "shard_sources", key: addr, interval: true, comment: "private sources that the shard translates or keeps in"},
		{name: "shard_echo", key: addr, comment: "shard addresses that the node answers echo requests for (--shard-echo)"},
		{name: "parted", key: []part{address, address}, timeout: partedTimeout,
			comment: "public address . backend that parted a while ago: an agent that starts looks for their flows"},
	}
	defs := make([]setDef, 0, numSets)
	for _, def := range perFamily {
		four, six := def, def
		four.name += "4"
		six.name, six.ipv6 = def.name+"6", true
		defs = append(defs, four, six)
	}
	return append(defs,
		setDef{name: "uplink_if", key: []part{link}, comment: "interfaces that lead to the outside"},
		setDef{name: "workload_if", key: []part{link}, comment: "interfaces behind which local backends are routed"},
		setDef{name: "tenant_if", key: []part{link}, comment: "interfaces of tenants, whose addresses may be those of backends too"})
}
