// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func ip(s string) netip.Addr         { return netip.MustParseAddr(s) }
func target(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func owner(namespace, name string) nat.Key { return nat.Key{Namespace: namespace, Name: name} }

// span is the range of a prefix, "10.0.0.0/8", or from one address to another.
func span(from string, to ...string) nat.Range {
	if len(to) > 0 {
		return nat.Range{From: ip(from), To: ip(to[0])}
	}
	prefix := netip.MustParsePrefix(from)
	last := prefix.Masked().Addr().AsSlice()
	for bit := prefix.Bits(); bit < 8*len(last); bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	return nat.Range{From: prefix.Masked().Addr(), To: end}
}

func named(reason string, r nat.Range) nat.NamedRange {
	return nat.NamedRange{Range: r, Reason: reason}
}

// only admits clients from these ranges.
func only(ranges ...nat.Range) nat.Sources { return nat.Sources{Restricted: true, Allowed: ranges} }

// sampleState is what a node has to hold for two virtual machines with three public addresses, one of a machine elsewhere,
// source ranges, a Service with externalTrafficPolicy: Cluster and an egress shard.
func sampleState() nat.State {
	web, db, extra := owner("tenant-a", "vm-instance-web"), owner("tenant-b", "vm-instance-db"), owner("tenant-a", "web-public-x7ktq")
	mail, wide := owner("tenant-b", "vm-instance-mail"), owner("tenant-c", "any-node")
	clients := only(span("192.0.2.0/25"), span("192.0.2.200", "192.0.2.210"))
	return nat.State{
		Addresses: []nat.Address{
			{Public: ip("203.0.113.10"), Owner: web, Hosted: true, Whole: nat.Forward{Backend: ip("10.244.1.10"), Owner: web, Sources: clients}},
			{Public: ip("203.0.113.11"), Owner: extra, Hosted: true,
				Echo: nat.Forward{Backend: ip("10.244.1.10"), Owner: extra},
				Ports: []nat.Port{
					{Protocol: nat.TCP, Port: 443, Target: target("10.244.1.10:8443"), Owner: extra},
					{Protocol: nat.UDP, Port: 53, Target: target("10.244.1.10:53"), Owner: extra},
				}},
			{Public: ip("203.0.113.20"), Owner: db, Hosted: true, Ports: []nat.Port{
				{Protocol: nat.TCP, Port: 22, Target: target("10.244.1.20:22"), Owner: db, Sources: only(span("192.0.2.0/24"))}}},
			{Public: ip("203.0.113.30"), Owner: mail},
			{Public: ip("203.0.113.40"), Owner: wide, Elsewhere: true, Whole: nat.Forward{Backend: ip("10.244.2.40"), Owner: wide}},
			{Public: ip("2001:db8:203::10"), Owner: web, Hosted: true, Whole: nat.Forward{Backend: ip("fd00:10:244:1::10"), Owner: web}},
			{Public: ip("2001:db8:203::20"), Owner: db, Hosted: true,
				Echo: nat.Forward{Backend: ip("fd00:10:244:1::20"), Owner: db, Sources: only(span("2001:db8:77::/48"))},
				Ports: []nat.Port{{Protocol: nat.TCP, Port: 22, Target: target("[fd00:10:244:1::20]:22"), Owner: db,
					Sources: only(span("2001:db8:77::/48"))}}},
		},
		Backends: []nat.Backend{
			{Addr: ip("10.244.1.10"), Owner: web, Primary: ip("203.0.113.10"), PrimaryOwner: web},
			{Addr: ip("10.244.1.20"), Owner: db, Primary: ip("203.0.113.20"), PrimaryOwner: db},
			{Addr: ip("fd00:10:244:1::10"), Owner: web, Primary: ip("2001:db8:203::10"), PrimaryOwner: web},
			{Addr: ip("fd00:10:244:1::20"), Owner: db},
		},
		Host: nat.Host{
			Cluster: []nat.NamedRange{
				named("--cluster-cidr", span("10.96.0.0/16")), named("podCIDR of node-a", span("10.244.1.0/24")),
				named("address of node-a", span("198.51.100.1/32")), named("address of node-b", span("198.51.100.2/32")),
				named("address of node-a", span("2001:db8:100::1/128")), named("podCIDR of node-a", span("fd00:10:244:1::/64")),
			},
			Masquerade: []nat.NamedRange{
				named("address of node-a", span("198.51.100.1/32")), named("address of node-b", span("198.51.100.2/32")),
				named("address of node-a", span("2001:db8:100::1/128")),
			},
			IPv4:      ip("198.51.100.1"),
			IPv6:      ip("2001:db8:100::1"),
			Uplinks:   []string{"up0"},
			Workloads: []string{"va0", "vb0"},
			ShardSources: []nat.NamedRange{
				named("--shard-source-cidr", span("10.0.0.0/8")), named("--shard-source-cidr", span("100.64.0.0/10")),
				named("--shard-source-cidr", span("fc00::/7")),
			},
			Shard:      nat.Shard{Owner: owner("galactic-system", "node-a-egress"), IPv4: ip("203.0.113.200"), IPv6: ip("2001:db8:203::200"), Echo: true},
			IdleShards: []nat.OwnedAddress{{Addr: ip("203.0.113.201"), Owner: owner("galactic-system", "node-b-egress")}},
		},
	}
}

// open makes a Table in a namespace and closes it with the test.
func open(tb testing.TB, ns *testenv.NetNS, o Options) *Table {
	tb.Helper()
	o.NetNS = ns.FD()
	table, err := Open(o)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, table.Close()) })
	return table
}

// openOwned is open for tests of ownership, which takes kernel 6.9.
func openOwned(tb testing.TB, ns *testenv.NetNS) *Table {
	tb.Helper()
	table := open(tb, ns, Options{})
	if table.flags == 0 {
		tb.Skip("the kernel does not know the owner and persist flags: 6.9")
	}
	return table
}

func syncTo(tb testing.TB, table *Table, state nat.State) Result {
	tb.Helper()
	result, err := table.Sync(state)
	require.NoError(tb, err)
	require.Empty(tb, result.Invalid)
	return result
}

// generation is the number of transactions in the namespace, of anybody.
func generation(tb testing.TB, ns *testenv.NetNS) uint32 {
	tb.Helper()
	c, err := nftables.New(nftables.WithNetNSFd(ns.FD()))
	require.NoError(tb, err)
	gen, err := c.GetGen()
	require.NoError(tb, err)
	return gen.ID
}

// requireHolds compares what the kernel holds, read by a connection of its own, with what it should.
func requireHolds(tb testing.TB, ns *testenv.NetNS, state nat.State) {
	tb.Helper()
	reader := &Table{netns: ns.FD(), layout: newLayout(nat.PortRange{})}
	reader.enc.defs = reader.layout.defs
	c, err := dial(ns.FD())
	require.NoError(tb, err)
	defer func() { require.NoError(tb, c.close()) }()
	have, strange, err := reader.readElements(c, &snapshot{})
	require.NoError(tb, err)
	require.Empty(tb, strange)
	want, invalid := stateElements(&state)
	require.Empty(tb, invalid)
	require.Equal(tb, texts(want), texts(have))
}

// texts returns elements in the order and nearly in the form of nft.
func texts(es []element) []string {
	out := make([]string, len(es))
	for i := range es {
		out[i] = es[i].String()
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// delta is the difference of two states, record by record.
func delta(old, new nat.State) nat.Delta {
	d := nat.Delta{
		Addresses: changes(old.Addresses, new.Addresses, func(a nat.Address) netip.Addr { return a.Public }, nat.Address.Equal),
		Backends: changes(old.Backends, new.Backends, func(b nat.Backend) netip.Addr { return b.Addr },
			func(a, b nat.Backend) bool { return a == b }),
	}
	if !old.Host.Equal(new.Host) {
		d.Host = &nat.Change[nat.Host]{Old: &old.Host, New: &new.Host}
	}
	return d
}

func changes[T any](old, new []T, addr func(T) netip.Addr, equal func(a, b T) bool) []nat.Change[T] {
	byAddr := make(map[netip.Addr]nat.Change[T])
	for i := range old {
		byAddr[addr(old[i])] = nat.Change[T]{Old: &old[i]}
	}
	for i := range new {
		c := byAddr[addr(new[i])]
		c.New = &new[i]
		if c.Old != nil && equal(*c.Old, *c.New) {
			delete(byAddr, addr(new[i]))
			continue
		}
		byAddr[addr(new[i])] = c
	}
	var out []nat.Change[T]
	for _, c := range byAddr {
		out = append(out, c)
	}
	return out
}

func dialTCP(addr string) error {
	c, err := net.DialTimeout("tcp", addr, 200*time.Millisecond)
	if err != nil {
		return err
	}
	return c.Close()
}
