// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

var ( // backends of both families, as the other end of up1 and up2
	backend4 = netip.MustParseAddr("10.244.1.10")
	backend6 = netip.MustParseAddr("fd00:10:244:1::10")
)

func (l *lab) backendVia(t testing.TB, backend netip.Addr, dev string) {
	t.Helper()
	require.NoError(t, l.ns.SetRoute(testenv.Route{Dst: netip.PrefixFrom(backend, backend.BitLen()), Dev: dev}))
}

func TestWorkloadInterfaces(t *testing.T) {
	for _, backend := range []netip.Addr{backend4, backend6} {
		t.Run(testenv.FamilyOf(backend).String(), func(t *testing.T) {
			l := newLab(t)
			r := l.follow(t)
			l.backendVia(t, backend, "up1")
			// A next one behind the same interface, one without a route, one that is the node itself, and nothing at all.
			second := backend.Next()
			l.backendVia(t, second, "up1")
			nowhere := netip.MustParseAddr("192.0.2.99")
			got, err := r.TrackBackends([]netip.Addr{backend, second, nowhere, netip.MustParseAddr("198.51.100.1"), {}}, nil)
			require.NoError(t, err)
			require.Equal(t, []string{"up1"}, got)

			l.backendVia(t, backend, "up2")
			r.untilWorkloads(t, "up1", "up2")
			got, err = r.TrackBackends(nil, []netip.Addr{second, second})
			require.NoError(t, err)
			require.Equal(t, []string{"up2"}, got)

			// An uplink is none, also when it becomes one later.
			l.defaultVia(t, testenv.FamilyOf(backend), 2)
			until(t, "no workload interface", 0, func() int { return len(r.WorkloadInterfaces()) })
			require.NoError(t, l.ns.DelRoute(testenv.FamilyOf(backend).Default()))
			r.untilWorkloads(t, "up2")

			require.NoError(t, l.ns.DelLink("up2"))
			until(t, "no workload interface", 0, func() int { return len(r.WorkloadInterfaces()) })
		})
	}
}

func TestWorkloadInterfaceOfABackendWithoutRouteYet(t *testing.T) {
	l := newLab(t)
	r := l.follow(t)
	got, err := r.TrackBackends([]netip.Addr{backend4}, nil)
	require.NoError(t, err)
	require.Empty(t, got)
	l.backendVia(t, backend4, "up1")
	r.untilWorkloads(t, "up1")
	require.NoError(t, l.nl.RouteReplace(&netlink.Route{Dst: ipNet(netip.PrefixFrom(backend4, 32)), Type: unix.RTN_BLACKHOLE}))
	until(t, "no workload interface", 0, func() int { return len(r.WorkloadInterfaces()) })
}

func TestWorkloadInterfaceIsTheBridge(t *testing.T) {
	topo := testenv.NewTopology(t, testenv.WithBridge())
	l := &lab{ns: topo.NodeA.NS}
	n := l.open(t)
	require.Equal(t, []string{topo.NodeA.Uplink}, n.Facts().Uplinks)
	got, err := n.TrackBackends([]netip.Addr{topo.Web.Addr4(), topo.Web.Addr6(), topo.DB.Addr4(), topo.Mail.Addr4()}, nil)
	require.NoError(t, err)
	require.Equal(t, []string{topo.Web.NodeIf}, got)
}

func TestWorkloadInterfaceFollowsRules(t *testing.T) {
	l := newLab(t)
	r := l.follow(t)
	l.backendVia(t, backend4, "up1")
	_, err := r.TrackBackends([]netip.Addr{backend4}, nil)
	require.NoError(t, err)
	require.NoError(t, l.nl.RouteAdd(&netlink.Route{LinkIndex: l.index(t, "up2"), Dst: ipNet(netip.PrefixFrom(backend4, 32)), Scope: unix.RT_SCOPE_LINK, Table: 100}))
	l.settled(t, r)
	rule := netlink.NewRule()
	rule.Family, rule.Table, rule.Priority = netlink.FAMILY_V4, 100, 10
	require.NoError(t, l.nl.RuleAdd(rule))
	r.untilWorkloads(t, "up2")
}

func manyBackends(n int) []netip.Addr {
	list := make([]netip.Addr, n)
	next := netip.MustParseAddr("10.100.0.1")
	for i := range list {
		list[i] = next
		next = next.Next()
	}
	return list
}

// One changed backend must not cost a look-up of all.
func TestTrackingOneOfManyBackendsIsCheap(t *testing.T) {
	l := newLab(t)
	n := l.open(t)
	require.NoError(t, l.ns.SetRoute(testenv.Route{Dst: netip.MustParsePrefix("10.100.0.0/16"), Dev: "up1"}))
	all := manyBackends(10_000)
	begin := time.Now()
	_, err := n.TrackBackends(all, nil)
	require.NoError(t, err)
	cold := time.Since(begin)

	const rounds = 100
	begin = time.Now()
	for i := range rounds {
		got, err := n.TrackBackends(all[i:i+1], all[i+1:i+2])
		require.NoError(t, err)
		require.Equal(t, []string{"up1"}, got)
	}
	one := time.Since(begin) / rounds
	t.Logf("10,000 backends: %v, one more: %v", cold, one)
	require.Less(t, one, cold/100)
}

func BenchmarkTrackOneOf10k(b *testing.B) {
	l := newLab(b)
	n := l.open(b)
	require.NoError(b, l.ns.SetRoute(testenv.Route{Dst: netip.MustParsePrefix("10.100.0.0/16"), Dev: "up1"}))
	all := manyBackends(10_000)
	_, err := n.TrackBackends(all, nil)
	require.NoError(b, err)
	for b.Loop() {
		if _, err := n.TrackBackends(all[:1], nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTrack(b *testing.B) {
	for _, size := range []int{100, 10_000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			l := newLab(b)
			n := l.open(b)
			require.NoError(b, l.ns.SetRoute(testenv.Route{Dst: netip.MustParsePrefix("10.100.0.0/16"), Dev: "up1"}))
			all := manyBackends(size)
			for b.Loop() {
				if _, err := n.TrackBackends(all, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
