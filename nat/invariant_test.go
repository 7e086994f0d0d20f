// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkInvariants holds for every State whatever the objects.
func checkInvariants(t testing.TB, s State) {
	t.Helper()
	byPublic := map[netip.Addr]Address{}
	for i, a := range s.Addresses {
		require.True(t, i == 0 || s.Addresses[i-1].Public.Less(a.Public), "addresses sorted and distinct at %s", a.Public)
		byPublic[a.Public] = a
		checkAddress(t, s, a)
	}
	for i, b := range s.Backends {
		require.True(t, i == 0 || s.Backends[i-1].Addr.Less(b.Addr), "backends sorted and distinct at %s", b.Addr)
		require.NotEqual(t, Key{}, b.Owner, "backend %s has an owner", b.Addr)
		require.Equal(t, b.Primary.IsValid(), b.PrimaryOwner != Key{}, "backend %s: primary comes with its owner", b.Addr)
		if !b.Primary.IsValid() {
			continue
		}
		require.Contains(t, byPublic, b.Primary, "primary of %s is an address", b.Addr)
		require.Contains(t, byPublic[b.Primary].Attached, b.Addr, "primary %s has its backend attached", b.Primary)
		require.Equal(t, b.Addr.Is4(), b.Primary.Is4(), "primary of %s is of its family", b.Addr)
	}
	checkShards(t, s.Host, byPublic)
	checkSeparate(t, s.Host.Cluster)
	checkSeparate(t, s.Host.Masquerade)
}

// checkShards: an address is a Service's, or the shard's of this node, or another shard's.
func checkShards(t testing.TB, h Host, byPublic map[netip.Addr]Address) {
	t.Helper()
	for i, idle := range h.IdleShards {
		require.True(t, i == 0 || h.IdleShards[i-1].Addr.Less(idle.Addr), "shard addresses sorted and distinct at %s", idle.Addr)
		require.NotContains(t, byPublic, idle.Addr, "of a shard and of a Service")
		require.NotContains(t, []netip.Addr{h.Shard.IPv4, h.Shard.IPv6}, idle.Addr, "translated and not translated")
	}
	for _, a := range []netip.Addr{h.Shard.IPv4, h.Shard.IPv6} {
		require.NotContains(t, byPublic, a, "of the shard and of a Service")
	}
}

func checkAddress(t testing.TB, s State, a Address) {
	t.Helper()
	local := func(b netip.Addr) bool {
		return slices.ContainsFunc(s.Backends, func(r Backend) bool { return r.Addr == b })
	}
	require.NotEqual(t, Key{}, a.Owner, "%s has an owner", a.Public)
	require.False(t, a.Whole.Active() && (a.Echo.Active() || len(a.Ports) > 0), "%s is whole and in ports", a.Public)
	require.Equal(t, len(a.Attached) > 0, a.Hosted, "%s is hosted when a backend is here", a.Public)
	require.False(t, a.Hosted && a.Elsewhere, "%s is hosted and elsewhere", a.Public)
	require.True(t, slices.IsSortedFunc(a.Attached, netip.Addr.Compare), "%s: attached sorted", a.Public)
	for _, b := range a.Attached {
		require.True(t, local(b), "%s: attached %s is a backend of this node", a.Public, b)
		require.Equal(t, a.Public.Is4(), b.Is4(), "%s: attached %s crosses families", a.Public, b)
	}
	forwards := []Forward{a.Whole, a.Echo}
	for i, p := range a.Ports {
		before := func() bool {
			b := a.Ports[i-1]
			return b.Protocol < p.Protocol || b.Protocol == p.Protocol && b.Port < p.Port
		}
		require.True(t, i == 0 || before(), "%s: ports sorted and distinct at %d", a.Public, p.Port)
		require.NotZero(t, p.Port)
		require.NotZero(t, p.Target.Port())
		forwards = append(forwards, Forward{Backend: p.Target.Addr(), Owner: p.Owner, Sources: p.Sources})
	}
	for _, f := range forwards {
		if !f.Active() {
			continue
		}
		require.Equal(t, a.Public.Is4(), f.Backend.Is4(), "%s crosses families", a.Public)
		require.NotEqual(t, a.Public, f.Backend, "%s forwards to itself", a.Public)
		require.True(t, a.Elsewhere || a.Hosted, "%s forwards without being hosted or elsewhere", a.Public)
		checkSources(t, a.Public, f.Sources)
	}
	_, inCluster := findRange(s.Host.Cluster, a.Public)
	require.False(t, inCluster, "%s is in a cluster range", a.Public)
}

func checkSources(t testing.TB, public netip.Addr, s Sources) {
	t.Helper()
	require.True(t, s.Restricted || len(s.Allowed) == 0, "%s: ranges without a restriction", public)
	for i, r := range s.Allowed {
		require.Equal(t, public.Is4(), r.From.Is4(), "%s: source ranges of the other family", public)
		require.LessOrEqual(t, r.From.Compare(r.To), 0)
		if i > 0 {
			require.True(t, s.Allowed[i-1].To.Next().Less(r.From), "%s: source ranges overlap or touch", public)
		}
	}
}

func checkSeparate(t testing.TB, list []NamedRange) {
	t.Helper()
	for i, r := range list {
		require.Equal(t, r.From.Is4(), r.To.Is4())
		require.LessOrEqual(t, r.From.Compare(r.To), 0)
		require.NotEmpty(t, r.Reason)
		require.True(t, i == 0 || list[i-1].To.Less(r.From), "ranges sorted and separate at %s", r.Range)
	}
}
