// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

// The model says what the rules make of a packet, chain by chain as the kernel
// does, to compare the decision with. It knows the interface of the packet.
type arrival uint8

const (
	byUplink arrival = iota
	byWorkload
	fromNode
)

type model struct {
	world
	nat.State
}

func (m model) address(a netip.Addr) *nat.Address {
	i := slices.IndexFunc(m.Addresses, func(r nat.Address) bool { return r.Public == a })
	if i < 0 {
		return nil
	}
	return &m.Addresses[i]
}

func inside(ranges []nat.NamedRange, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r nat.NamedRange) bool { return r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0 })
}

func (m model) shard() netip.Addr {
	if Family(m.world) == IPv4 {
		return m.Host.Shard.IPv4
	}
	return m.Host.Shard.IPv6
}

func (m model) idle(a netip.Addr) bool {
	return slices.ContainsFunc(m.Host.IdleShards, func(s nat.OwnedAddress) bool { return s.Addr == a })
}

// create returns the flow that the packet makes; false when it is dropped.
func (m model) create(f Flow, from arrival) (Flow, bool) {
	f.Reply.Src, f.Reply.SrcPort, f.Reply.Dst, f.Reply.DstPort = f.Orig.Dst, f.Orig.DstPort, f.Orig.Src, f.Orig.SrcPort
	rec := m.address(f.Orig.Dst)
	if from == byWorkload && m.address(f.Orig.Src) != nil {
		return f, false
	}
	masquerade := false
	if rec != nil && (rec.Hosted || rec.Elsewhere && from == byUplink) {
		if !m.translate(&f, rec) {
			return f, false
		}
		masquerade = rec.Elsewhere || inside(m.Host.Masquerade, f.Orig.Src)
	} else if from == byUplink && (rec != nil || f.Orig.Dst == m.shard() || m.idle(f.Orig.Dst)) {
		return f, false
	}
	m.leave(&f, from, masquerade)
	return f, true
}

func (m model) translate(f *Flow, rec *nat.Address) bool {
	to, sources := netip.AddrPort{}, nat.Sources{}
	for _, p := range rec.Ports {
		if p.Protocol == f.Protocol && p.Port == f.Orig.DstPort {
			to, sources = p.Target, p.Sources
		}
	}
	if rec.Echo.Active() && (f.Orig.ICMPType == echoRequest4 || f.Orig.ICMPType == echoRequest6) {
		to, sources = netip.AddrPortFrom(rec.Echo.Backend, f.Orig.DstPort), rec.Echo.Sources
	}
	if rec.Whole.Active() {
		to, sources = netip.AddrPortFrom(rec.Whole.Backend, f.Orig.DstPort), rec.Whole.Sources
	}
	refused := sources.Restricted && !slices.ContainsFunc(sources.Allowed, func(r nat.Range) bool {
		return r.From.Compare(f.Orig.Src) <= 0 && f.Orig.Src.Compare(r.To) <= 0
	})
	f.Reply.Src, f.Reply.SrcPort = to.Addr(), to.Port()
	return to.IsValid() && !refused
}

func (m model) leave(f *Flow, from arrival, masquerade bool) {
	if masquerade {
		f.Reply.Dst = m.addr("198.51.100.1")
		return
	}
	if from == byUplink || inside(m.Host.Cluster, f.Orig.Dst) {
		return
	}
	for _, b := range m.Backends {
		if b.Addr == f.Orig.Src && b.Primary.IsValid() {
			f.Reply.Dst = b.Primary
			return
		}
	}
	toUplink := f.Reply.Src == f.Orig.Dst && !inside(m.Host.ShardSources, f.Orig.Dst)
	if toUplink && m.shard().IsValid() && inside(m.Host.ShardSources, f.Orig.Src) && from != fromNode {
		f.Reply.Dst = m.shard()
	}
}

// randomState assigns backends to addresses in a random but valid way.
func randomState(w world, r *rand.Rand) nat.State {
	s := nat.State{Host: w.state().Host}
	if r.IntN(3) == 0 {
		s.Host.Shard = nat.Shard{}
		if r.IntN(2) == 0 {
			s.Host.IdleShards = []nat.OwnedAddress{{Addr: w.addr("203.0.113.200")}}
		}
	}
	primary := make(map[netip.Addr]netip.Addr)
	for i := range 8 {
		rec := nat.Address{Public: w.addr(netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + i)}).String())}
		backend := w.addr(netip.AddrFrom4([4]byte{10, 244, 1, byte(10 + r.IntN(4))}).String())
		var sources nat.Sources
		if r.IntN(3) == 0 {
			sources = nat.Sources{Restricted: true, Allowed: []nat.Range{w.span("10.244.1.11", "10.244.1.12"), w.span("192.0.2.0", "192.0.2.1")}}
		}
		rec.Hosted, rec.Elsewhere = r.IntN(2) == 0, false
		if !rec.Hosted {
			rec.Elsewhere = r.IntN(2) == 0
			backend = w.addr("10.244.2.10")
		}
		switch {
		case !rec.Hosted && !rec.Elsewhere:
		case r.IntN(2) == 0:
			rec.Whole = nat.Forward{Backend: backend, Sources: sources}
		default:
			for port := range uint16(3) {
				if r.IntN(2) == 0 {
					rec.Ports = append(rec.Ports, nat.Port{Protocol: nat.TCP, Port: port, Sources: sources,
						Target: netip.AddrPortFrom(backend, port+uint16(r.IntN(2)))})
				}
			}
			if r.IntN(2) == 0 {
				rec.Echo = nat.Forward{Backend: backend, Sources: sources}
			}
		}
		if rec.Hosted {
			rec.Attached = []netip.Addr{backend}
			if p := primary[backend]; !p.IsValid() && r.IntN(4) > 0 {
				primary[backend] = rec.Public
			} else if !p.IsValid() {
				primary[backend] = netip.Addr{}
			}
		}
		s.Addresses = append(s.Addresses, rec)
	}
	for a, p := range primary {
		s.Backends = append(s.Backends, nat.Backend{Addr: a, Primary: p})
	}
	slices.SortFunc(s.Backends, func(a, b nat.Backend) int { return a.Addr.Compare(b.Addr) })
	return s
}

// randomPacket is one that can arrive that way: what comes by an uplink has a
// source from outside or from another node.
func randomPacket(w world, r *rand.Rand) (Flow, arrival) {
	pick := func(four ...string) netip.Addr { return w.addr(four[r.IntN(len(four))]) }
	f := Flow{Protocol: nat.TCP}
	f.Orig.SrcPort, f.Orig.DstPort = uint16(r.IntN(3)), uint16(r.IntN(4))
	if r.IntN(4) == 0 {
		f = w.flow("icmp 192.0.2.1:7 192.0.2.2:0 192.0.2.2:0 192.0.2.1:7")
	}
	f.Orig.Dst = pick("203.0.113.10", "203.0.113.11", "203.0.113.12", "203.0.113.13", "203.0.113.14", "203.0.113.15",
		"203.0.113.200", "192.0.2.9", "10.96.0.1", "10.9.0.1", "172.20.1.1", "198.51.100.2")
	from := arrival(r.IntN(3))
	switch from {
	case byUplink:
		f.Orig.Src = pick("192.0.2.0", "192.0.2.1", "192.0.2.2", "198.51.100.2")
	case byWorkload:
		f.Orig.Src = pick("10.244.1.10", "10.244.1.11", "10.244.1.12", "10.244.1.13", "172.20.1.77", "10.9.0.7", "203.0.113.10")
	case fromNode:
		f.Orig.Src = pick("198.51.100.1")
	}
	return f, from
}

func checkModel(t *testing.T, seed uint64) (created bool) {
	r := rand.New(rand.NewPCG(seed, 1))
	w := world(IPv4 + Family(r.IntN(2)))
	s := randomState(w, r)
	packet, from := randomPacket(w, r)
	f, created := model{w, s}.create(packet, from)
	x := NewIndex(s)
	// The one flow that is cut although the state creates it: a local source that
	// nothing tells from one outside. Its next packet makes the same flow.
	doubtful := from == byWorkload && !x.isLocal(f.Orig.Src) && f.Reply.Src == f.Orig.Dst && f.Reply.Dst == f.Orig.Src
	if created && !doubtful {
		require.Equal(t, Legal.String(), x.Judge(f, nil).String(), "seed %d, arrival %d: %v\n%+v", seed, from, f, s)
	}
	// Whatever the flow and the state, there is an answer.
	other := NewIndex(randomState(w, r))
	_ = other.Judge(f, w.former()).String()
	f.Reply.Src, f.Reply.Dst = f.Reply.Dst, netip.Addr{}
	_ = other.Judge(f, w.former()).String()
	return created
}

func TestWhatTheStateCreatesIsLegal(t *testing.T) {
	seed, created := rand.Uint64(), 0
	t.Logf("seed %d", seed)
	const rounds = 20_000
	for i := range uint64(rounds) {
		if checkModel(t, seed+i) {
			created++
		}
	}
	require.Greater(t, created, rounds/4, "the model drops nearly everything and proves nothing")
}

// spared lists what stays although a new connection would look different.
func spared(m model, f, fresh Flow, created bool) bool {
	seen := m.address(f.Reply.Dst)
	sameWay := created && f.Reply.Src == fresh.Reply.Src && f.Reply.SrcPort == fresh.Reply.SrcPort
	switch {
	case !sameWay:
		return false
	case seen != nil && slices.Contains(seen.Attached, f.Orig.Src):
		return true // still attached, no longer the primary (R8)
	case f.Reply.Dst == m.shard():
		return true // began before its backend had an address
	}
	return f.Reply.Dst == m.addr("198.51.100.1") // perhaps another program's
}

// TestWhatTheStateDoesNotCreateIsStale makes flows by one state and judges them
// by another.
func TestWhatTheStateDoesNotCreateIsStale(t *testing.T) {
	seed, stale, kept := rand.Uint64(), 0, 0
	t.Logf("seed %d", seed)
	const rounds = 20_000
	for i := range uint64(rounds) {
		r := rand.New(rand.NewPCG(seed+i, 2))
		w := world(IPv4 + Family(r.IntN(2)))
		before, after := model{w, randomState(w, r)}, model{w, randomState(w, r)}
		packet, from := randomPacket(w, r)
		f, ok := before.create(packet, from)
		if !ok {
			continue
		}
		s := newPass(nil).scope
		affected(deltaOf(before.State, after.State), func(target target, m memory) { s.add(target, m) })
		fresh, ok := after.create(packet, from)
		x := NewIndex(after.State)
		if from == byUplink && x.isLocal(f.Orig.Src) && !f.destinationTranslated() {
			continue // looks like a dial of the node's own, which is left alone
		}
		verdict := x.Judge(f, &s)
		switch {
		case ok && f == fresh, spared(after, f, fresh, ok):
			kept++
		default:
			stale++
			require.NotEqual(t, Legal.String(), verdict.String(), "seed %d, arrival %d: %v, now %v %v", seed+i, from, f, fresh, ok)
			require.True(t, s.touches(x, f), "seed %d: nobody looks at %v", seed+i, f)
		}
	}
	require.Greater(t, stale, rounds/20)
	require.Greater(t, kept, rounds/20)
}

func FuzzJudge(f *testing.F) {
	for seed := range uint64(16) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) { checkModel(t, seed) })
}
