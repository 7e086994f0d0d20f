// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// The bits of `ct status` (IPS_SRC_NAT and IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h).
const (
	ipsSrcNAT = 1 << 4
	ipsDstNAT = 1 << 5
)

// translateRules translates the destination, most specific first. A map without the key ends its rule and the next one is
// tried, so what reaches the end is not listed.
func translateRules() []rule {
	var rules []rule
	for _, f := range families() {
		rules = append(rules,
			// dnat ip to ip daddr . meta l4proto . th dport map @port4
			newRule("PortList", f.guard(), f.loadPort(), match{f.mapped(port4), f.toAddressPort(expr.NATTypeDestNAT)}),
			// icmp type echo-request dnat ip to ip daddr map @echo4
			newRule("PortList with allowICMP", f.guard(), f.echo(), f.daddrTo(echo4)),
			// dnat ip to ip daddr map @whole4
			newRule("WholeIP", f.guard(), f.daddrTo(whole4)),
			// ip daddr @hosted4 counter drop
			newRule("hosted here and not listed", f.guard(), f.daddrIn(hosted4), drop()))
	}
	return rules
}

// daddrTo is `dnat ip to ip daddr map @map`.
func (f family) daddrTo(s setID) match {
	return match{f.load(f.daddr, reg1), f.mapped(s), f.toAddress(expr.NATTypeDestNAT)}
}

func ingressNATRules() []rule {
	var rules []rule
	for _, f := range families() {
		// iifname != @uplink_if ip daddr @elsewhere4 return
		rules = append(rules, newRule("dialled from inside: the node of the backend translates",
			iifNotIn(uplinkIf), f.guard(), f.daddrIn(elsewhere4), goBack()))
	}
	for _, f := range families() {
		// iifname @uplink_if icmp type echo-request ip daddr @shard_echo4 redirect
		rules = append(rules, newRule("the node answers for its shard address",
			iifIn(uplinkIf), f.guard(), f.echo(), f.daddrIn(shardEcho4), match{&expr.Redir{}}))
	}
	// jump translate
	rules = append(rules, newRule("listed is translated, hosted and not listed is dropped", jump(translate)))
	for _, f := range families() {
		// iifname @uplink_if ip daddr @public4 counter drop
		rules = append(rules, newRule("hosted elsewhere or nowhere: would go back to the router",
			iifIn(uplinkIf), f.guard(), f.daddrIn(public4), drop()))
	}
	return rules
}

// localNATRules is for the connections of the node's own processes.
func localNATRules() []rule {
	var rules []rule
	for _, f := range families() {
		// ip daddr @elsewhere4 return
		rules = append(rules, newRule("dialled from inside: the node of the backend translates",
			f.guard(), f.daddrIn(elsewhere4), goBack()))
	}
	// jump translate
	return append(rules, newRule("the node's own processes reach local backends", jump(translate)))
}

// egressNATRules translates the source. ports, unless zero, are those that a shard uses.
func egressNATRules(ports nat.PortRange) []rule {
	var rules []rule
	for _, f := range families() {
		remote := slices.Concat(ctStatus(ipsDstNAT), f.dialledIn(public4), f.guard(), f.daddrNotIn(managed4))
		rules = append(rules,
			// ct status dnat ct original ip daddr @public4 ip daddr != @managed4 snat ip to iifname map @node4
			newRule("backend on another node: the reply must come back here", remote, f.iifTo(node4)),
			// ct status dnat ct original ip daddr @public4 ip daddr != @managed4 masquerade
			newRule("the same while the node's address is not known", remote, masquerade()))
	}
	for _, f := range families() {
		// ct original ip daddr @cluster4 return
		rules = append(rules, newRule("dialled in-cluster: stays private", f.dialledIn(cluster4), goBack()))
	}
	for _, f := range families() {
		// iifname != @uplink_if iifname != @tenant_if snat ip to ip saddr map @egress4
		rules = append(rules, newRule("a backend's own connection leaves with its primary address",
			iifNotIn(uplinkIf), iifNotIn(tenantIf), f.guard(), match{f.load(f.saddr, reg1), f.mapped(egress4), f.toAddress(expr.NATTypeSourceNAT)}))
	}
	for _, f := range families() {
		// The reply to a process of this node comes here anyway.
		fromNode := slices.Concat(ctStatus(ipsDstNAT), f.dialledIn(public4), f.guard(), f.saddrIn(masquerade4), notLocalSource())
		rules = append(rules,
			// ct status dnat ct original ip daddr @public4 ip saddr @masquerade4 fib saddr type != local snat ip to iifname map @node4
			newRule("from another node: the overlay would hand the reply past this node", fromNode, f.iifTo(node4)),
			// ct status dnat ct original ip daddr @public4 ip saddr @masquerade4 fib saddr type != local masquerade
			newRule("the same by another interface than an uplink", fromNode, masquerade()))
	}
	for _, f := range families() {
		// iifname != @uplink_if ip saddr @shard_sources4 ip daddr != @shard_sources4 fib saddr type != local
		shared := slices.Concat(iifNotIn(uplinkIf), f.guard(), f.saddrIn(shardSources4), f.daddrNotIn(shardSources4), notLocalSource())
		if !ports.IsZero() {
			// ... meta l4proto { tcp, udp, sctp, icmp, ipv6-icmp } snat ip to oifname map @shard4:LO-HI fully-random
			r := newRule("as the next rule, with the ports of --shard-ports (of an echo: the identifier)",
				shared, match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, in("", false)}, f.oifTo(shard4, ports))
			r.anonymous = bytesOf(nftables.TypeInetProto, portedProtocols())
			rules = append(rules, r)
		}
		// ... snat ip to oifname map @shard4 fully-random
		rules = append(rules, newRule("private sources leave by an uplink with the shard's address", shared, f.oifTo(shard4, nat.PortRange{})))
	}
	return rules
}

// portedProtocols are those whose flows the kernel tells apart by something that translation may change, sorted.
func portedProtocols() []byte {
	return []byte{unix.IPPROTO_ICMP, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMPV6, unix.IPPROTO_SCTP}
}

// oifTo is `snat ip to oifname map @map fully-random`, with ports `...map @map:LO-HI fully-random`. Many sources share the address. Where
// each keeps its port, two that send from equal ports at the same moment are both given that port, and the kernel drops the first packet of
// one (insert_failed). Random ports make that as rare as one in 60,000 of such moments.
func (f family) oifTo(s setID, ports nat.PortRange) match {
	to := &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.nfproto), RegAddrMin: reg1, RegAddrMax: reg1, FullyRandom: true}
	m := match{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, f.mapped(s)}
	if !ports.IsZero() {
		low, high := regAt(16), regAt(32)
		m = append(m, portNumber(ports.From, low), portNumber(ports.To, high))
		to.RegProtoMin, to.RegProtoMax, to.Specified = low, high, true
	}
	return append(m, to)
}

func portNumber(n uint16, reg uint32) expr.Any {
	return &expr.Immediate{Register: reg, Data: binary.BigEndian.AppendUint16(nil, n)}
}
