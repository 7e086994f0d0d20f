// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// Random states follow each other. After every step the kernel holds exactly the elements of the new state, written as the
// difference to the one before.
func TestRandomSequence(t *testing.T) {
	const steps = 150
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := &random{rand.New(rand.NewPCG(seed, 1))}
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	state := nat.State{}
	syncTo(t, table, state)
	for step := range steps {
		next := r.state()
		_, err := table.Apply(delta(state, next))
		require.NoError(t, err, "seed %d, step %d", seed, step)
		requireHolds(t, ns, next)
		state = next
	}
	require.Zero(t, untouched(syncTo(t, table, state)))
}

type random struct{ *rand.Rand }

func (r *random) chance(percent int) bool { return r.IntN(100) < percent }

func (r *random) owner() nat.Key { return owner("ns", fmt.Sprintf("svc-%d", r.IntN(3))) }

func (r *random) addr(v6 bool, net byte, n int) netip.Addr {
	if v6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: net, 15: byte(r.IntN(n))})
	}
	return netip.AddrFrom4([4]byte{10, net, 0, byte(r.IntN(n))})
}

// ranges returns sorted ranges that do not overlap, some of them adjacent, some at the edges of all addresses.
func (r *random) ranges(v6 bool) []nat.Range {
	a := netip.IPv4Unspecified()
	if v6 {
		a = netip.IPv6Unspecified()
	}
	var out []nat.Range
	for range r.IntN(4) {
		from := skip(a, r.IntN(3))
		to := skip(from, r.IntN(300))
		out = append(out, nat.Range{From: from, To: to})
		a = to.Next()
	}
	if r.chance(20) {
		out = append(out, nat.Range{From: skip(a, 5), To: lastAddr(a)})
	}
	return out
}

func skip(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

func (r *random) sources(v6 bool) nat.Sources {
	if r.chance(50) {
		return nat.Sources{}
	}
	return only(r.ranges(v6)...)
}

func (r *random) address(public netip.Addr) nat.Address {
	v6 := public.Is6()
	a := nat.Address{Public: public, Owner: r.owner(), Hosted: r.chance(60)}
	a.Elsewhere = !a.Hosted && r.chance(50)
	forward := func() nat.Forward {
		return nat.Forward{Backend: r.addr(v6, 2, 5), Owner: r.owner(), Sources: r.sources(v6)}
	}
	if r.chance(40) {
		a.Whole = forward()
		return a
	}
	if r.chance(50) {
		a.Echo = forward()
	}
	for i, p := range []nat.Protocol{nat.TCP, nat.UDP, nat.SCTP} {
		if r.chance(40) {
			a.Ports = append(a.Ports, nat.Port{Protocol: p, Port: uint16(80 + i), Owner: r.owner(), Sources: r.sources(v6),
				Target: netip.AddrPortFrom(r.addr(v6, 2, 5), uint16(1+r.IntN(3)))})
		}
	}
	return a
}

func (r *random) state() nat.State {
	var s nat.State
	for _, v6 := range []bool{false, true} {
		for n := range 12 {
			if !r.chance(60) {
				continue
			}
			public := netip.AddrFrom4([4]byte{203, 0, 113, byte(n)})
			if v6 {
				public = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 15: byte(n)})
			}
			s.Addresses = append(s.Addresses, r.address(public))
		}
		for n := range 5 {
			b := nat.Backend{Addr: netip.AddrFrom4([4]byte{10, 2, 0, byte(n)}), Owner: r.owner(), PrimaryOwner: r.owner()}
			if v6 {
				b.Addr = netip.AddrFrom16([16]byte{0: 0xfd, 1: 2, 15: byte(n)})
			}
			if r.chance(50) {
				b.Primary = r.addr(v6, 9, 4)
			}
			if r.chance(70) {
				s.Backends = append(s.Backends, b)
			}
		}
	}
	s.Host = r.host()
	return s
}

func (r *random) host() nat.Host {
	reasons := func(ranges []nat.Range) []nat.NamedRange {
		var out []nat.NamedRange
		for _, x := range ranges {
			out = append(out, named(fmt.Sprintf("reason %d", r.IntN(2)), x))
		}
		return out
	}
	both := func() []nat.NamedRange { return append(reasons(r.ranges(false)), reasons(r.ranges(true))...) }
	h := nat.Host{Cluster: both(), Masquerade: both(), ShardSources: both()}
	for n := range 3 {
		if r.chance(50) {
			h.Uplinks = append(h.Uplinks, fmt.Sprintf("up%d", n))
		} else if r.chance(50) {
			h.Workloads = append(h.Workloads, fmt.Sprintf("veth%d", n))
		}
	}
	if r.chance(50) {
		h.Shard = nat.Shard{Owner: r.owner(), IPv4: r.addr(false, 7, 2)}
	}
	if r.chance(30) {
		h.Shard.IPv6 = r.addr(true, 7, 2)
	}
	if r.chance(50) {
		h.IdleShards = []nat.OwnedAddress{{Addr: r.addr(false, 8, 2), Owner: r.owner()}}
	}
	return h
}
