// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/natplane/natplane/nat"
)

// world writes addresses in IPv4 and makes the same picture of either family:
// an IPv6 address is a prefix and the bytes of the IPv4 one, so that ranges
// stay ranges.
type world Family

func (w world) addr(four string) netip.Addr {
	a := netip.MustParseAddr(four)
	if Family(w) == IPv4 {
		return a
	}
	b := a.As4()
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
}

func (w world) addrs(four ...string) []netip.Addr {
	var list []netip.Addr
	for _, s := range four {
		list = append(list, w.addr(s))
	}
	return list
}

func (w world) port(s string) netip.AddrPort {
	ap := netip.MustParseAddrPort(s)
	return netip.AddrPortFrom(w.addr(ap.Addr().String()), ap.Port())
}

func (w world) span(from, to string) nat.Range { return nat.Range{From: w.addr(from), To: w.addr(to)} }

func (w world) named(from, to string) nat.NamedRange { return nat.NamedRange{Range: w.span(from, to)} }

func (w world) whole(backend string, sources ...nat.Range) nat.Forward {
	return nat.Forward{Backend: w.addr(backend), Sources: nat.Sources{Restricted: len(sources) > 0, Allowed: sources}}
}

// flow reads "tcp source destination reply-source reply-destination", each with
// a port. For icmp the port of the source is the identifier and "icmp/13" is
// another type than an echo request.
func (w world) flow(s string) Flow {
	part := strings.Fields(s)
	if len(part) != 5 {
		panic("not a flow: " + s)
	}
	ends := make([]netip.AddrPort, 0, 4)
	for _, p := range part[1:] {
		ends = append(ends, w.port(p))
	}
	f := Flow{
		Orig:  Tuple{Src: ends[0].Addr(), SrcPort: ends[0].Port(), Dst: ends[1].Addr(), DstPort: ends[1].Port()},
		Reply: Tuple{Src: ends[2].Addr(), SrcPort: ends[2].Port(), Dst: ends[3].Addr(), DstPort: ends[3].Port()},
	}
	switch part[0] {
	case "tcp":
		f.Protocol = nat.TCP
	case "udp":
		f.Protocol = nat.UDP
	case "sctp":
		f.Protocol = nat.SCTP
	case "gre":
		f.Protocol = 47
	case "icmp", "icmp/13":
		f.Orig.DstPort, f.Reply.SrcPort, f.Reply.DstPort = 0, f.Reply.DstPort, 0
		f.Protocol, f.Orig.ICMPType, f.Reply.ICMPType = protoICMP, echoRequest4, 0
		if Family(w) == IPv6 {
			f.Protocol, f.Orig.ICMPType, f.Reply.ICMPType = protoICMPv6, echoRequest6, echoRequest6+1
		}
		if part[0] == "icmp/13" {
			f.Orig.ICMPType, f.Reply.ICMPType = 13, 14
		}
	default:
		panic("protocol " + part[0])
	}
	return f
}

// state is a node with one address of each kind.
func (w world) state() nat.State {
	web, db, mute := w.addrs("10.244.1.10"), w.addrs("10.244.1.20"), w.addrs("10.244.1.50")
	s := nat.State{
		Addresses: []nat.Address{
			{Public: w.addr("203.0.113.10"), Hosted: true, Whole: w.whole("10.244.1.10"), Attached: web},
			{Public: w.addr("203.0.113.11"), Hosted: true, Echo: w.whole("10.244.1.10"), Attached: web, Ports: []nat.Port{
				{Protocol: nat.TCP, Port: 443, Target: w.port("10.244.1.10:8443")},
				{Protocol: nat.UDP, Port: 53, Target: w.port("10.244.1.10:53")},
			}},
			{Public: w.addr("203.0.113.20"), Hosted: true, Attached: db, Ports: []nat.Port{
				{Protocol: nat.TCP, Port: 22, Target: w.port("10.244.1.20:22"), Sources: w.whole("10.244.1.20", w.span("192.0.2.0", "192.0.2.255")).Sources},
			}},
			{Public: w.addr("203.0.113.21"), Hosted: true, Whole: w.whole("10.244.1.20", w.span("192.0.2.0", "192.0.2.255")), Attached: db},
			{Public: w.addr("203.0.113.30")},
			{Public: w.addr("203.0.113.40"), Elsewhere: true, Whole: w.whole("10.244.2.40")},
			{Public: w.addr("203.0.113.50"), Hosted: true, Whole: w.whole("10.244.1.50"), Attached: mute},
		},
		Backends: []nat.Backend{
			{Addr: web[0], Primary: w.addr("203.0.113.10")},
			{Addr: db[0], Primary: w.addr("203.0.113.20")},
			{Addr: mute[0]},
		},
		Host: nat.Host{
			Cluster: []nat.NamedRange{w.named("10.96.0.0", "10.96.255.255"), w.named("172.20.0.0", "172.20.255.255"), w.named("10.244.0.0", "10.244.255.255"),
				w.named("198.51.100.1", "198.51.100.1"), w.named("198.51.100.2", "198.51.100.2"), w.named("10.200.0.1", "10.200.0.1")},
			Masquerade:   []nat.NamedRange{w.named("10.200.0.1", "10.200.0.1"), w.named("198.51.100.1", "198.51.100.1"), w.named("198.51.100.2", "198.51.100.2")},
			ShardSources: []nat.NamedRange{w.named("10.0.0.0", "10.255.255.255")},
		},
	}
	w.setShard(&s, "203.0.113.200")
	return s
}

func (w world) setShard(s *nat.State, addr string) {
	if Family(w) == IPv4 {
		s.Host.Shard.IPv4 = w.addr(addr)
	} else {
		s.Host.Shard.IPv6 = w.addr(addr)
	}
}

// former: .98 is gone and nobody remembers, .99 is gone and stood for web, .30
// has moved away from here and stood for web.
func (w world) former() *scope {
	return &scope{public: map[netip.Addr]memory{
		w.addr("203.0.113.98"): {unknown: true},
		w.addr("203.0.113.99"): {backends: w.addrs("10.244.1.10")},
		w.addr("203.0.113.30"): {backends: w.addrs("10.244.1.10")},
	}}
}

func eachFamily(t *testing.T, f func(t *testing.T, w world)) {
	for _, family := range []Family{IPv4, IPv6} {
		t.Run(fmt.Sprintf("IPv%d", 2+2*family), func(t *testing.T) { f(t, world(family)) })
	}
}

// deltaOf compares two states by record, as the product's diff does.
func deltaOf(before, after nat.State) nat.Delta {
	d := nat.Delta{
		Addresses: changes(before.Addresses, after.Addresses, func(a nat.Address) netip.Addr { return a.Public }, nat.Address.Equal),
		Backends:  changes(before.Backends, after.Backends, func(b nat.Backend) netip.Addr { return b.Addr }, func(a, b nat.Backend) bool { return a == b }),
	}
	if !before.Host.Equal(after.Host) {
		d.Host = &nat.Change[nat.Host]{Old: &before.Host, New: &after.Host}
	}
	return d
}

func changes[T any](before, after []T, key func(T) netip.Addr, equal func(T, T) bool) []nat.Change[T] {
	var list []nat.Change[T]
	for i := range before {
		j := slices.IndexFunc(after, func(x T) bool { return key(x) == key(before[i]) })
		switch {
		case j < 0:
			list = append(list, nat.Change[T]{Old: &before[i]})
		case !equal(before[i], after[j]):
			list = append(list, nat.Change[T]{Old: &before[i], New: &after[j]})
		}
	}
	for j := range after {
		if !slices.ContainsFunc(before, func(x T) bool { return key(x) == key(after[j]) }) {
			list = append(list, nat.Change[T]{New: &after[j]})
		}
	}
	return list
}
