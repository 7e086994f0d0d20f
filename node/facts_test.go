// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

func TestUplinksFollowDefaultRoutes(t *testing.T) {
	for _, f := range testenv.Families() {
		t.Run(f.String(), func(t *testing.T) {
			l := newLab(t)
			r := l.follow(t)
			require.Empty(t, r.Facts().Uplinks)
			l.defaultVia(t, f, 0)
			r.untilUplinks(t, "up0")
			l.defaultVia(t, f, 1)
			r.untilUplinks(t, "up1")

			// A second one of another metric counts too, and so does what stays when the first goes.
			route := &netlink.Route{LinkIndex: l.index(t, "up2"), Dst: ipNet(f.Default()), Gw: gateway(f, 2).AsSlice(), Priority: 4000}
			require.NoError(t, l.nl.RouteAdd(route))
			r.untilUplinks(t, "up1", "up2")
			require.NoError(t, l.nl.RouteDel(route))
			r.untilUplinks(t, "up1")

			// The kernel drops IPv4 routes of an interface that goes down without an event of theirs.
			require.NoError(t, l.ns.SetUp("up1", false))
			until(t, "no uplinks", 0, func() int { return len(r.Facts().Uplinks) })
		})
	}
}

func TestUplinksOfBothFamiliesTogether(t *testing.T) {
	l := newLab(t)
	l.defaultVia(t, testenv.IPv4, 2)
	l.defaultVia(t, testenv.IPv6, 0)
	require.Equal(t, []string{"up0", "up2"}, l.open(t).Facts().Uplinks)
}

func TestUplinksOfMultipathRoutes(t *testing.T) {
	for _, f := range testenv.Families() {
		t.Run(f.String(), func(t *testing.T) {
			l := newLab(t)
			r := l.follow(t)
			require.NoError(t, l.nl.RouteAdd(&netlink.Route{Dst: ipNet(f.Default()), MultiPath: []*netlink.NexthopInfo{
				{LinkIndex: l.index(t, "up0"), Gw: gateway(f, 0).AsSlice()},
				{LinkIndex: l.index(t, "up2"), Gw: gateway(f, 2).AsSlice()},
			}}))
			r.untilUplinks(t, "up0", "up2")
		})
	}
}

func TestRoutesThatLeadNowhereAreNoUplinks(t *testing.T) {
	l := newLab(t)
	for i, kind := range []int{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT} {
		for _, f := range testenv.Families() {
			require.NoError(t, l.nl.RouteAdd(&netlink.Route{Dst: ipNet(f.Default()), Type: kind, Priority: 100 + i}))
		}
	}
	require.NoError(t, l.nl.RouteAdd(&netlink.Route{
		LinkIndex: l.index(t, "up1"), Dst: ipNet(testenv.IPv4.Default()), Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Priority: 200,
	}))
	// Another table is for somebody else's traffic.
	require.NoError(t, l.nl.RouteAdd(&netlink.Route{
		LinkIndex: l.index(t, "up1"), Dst: ipNet(testenv.IPv4.Default()), Gw: gateway(testenv.IPv4, 1).AsSlice(), Table: 100,
	}))
	require.Empty(t, l.open(t).Facts().Uplinks)
}

func TestUplinkIsRenamedOrRemoved(t *testing.T) {
	l := newLab(t)
	l.defaultVia(t, testenv.IPv4, 0)
	l.defaultVia(t, testenv.IPv6, 1)
	r := l.follow(t)
	l.settled(t, r)
	link, err := l.nl.LinkByName("up0")
	require.NoError(t, err)
	require.NoError(t, l.nl.LinkSetName(link, "wan0"))
	r.untilUplinks(t, "up1", "wan0")
	require.NoError(t, l.ns.DelLink("wan0"))
	r.untilUplinks(t, "up1")
}

func TestFixedUplinks(t *testing.T) {
	l := newLab(t)
	r := l.follow(t, "up2", "later", "up2")
	want := []string{"later", "up2"}
	require.Equal(t, want, r.Facts().Uplinks)
	l.defaultVia(t, testenv.IPv4, 0)
	require.NoError(t, l.ns.AddAddr("up0", netip.MustParsePrefix("192.0.2.1/32")))
	until(t, "the address", true, func() bool { return len(r.Facts().Addresses) == 7 })
	require.Equal(t, want, r.Facts().Uplinks)
	require.Equal(t, []string{node.WarnUplinkMissing}, codes(t, r.Node, node.WarnUplinkMissing))
}

func TestAddresses(t *testing.T) {
	l := newLab(t)
	r := l.follow(t)
	initial := r.Facts()
	require.Len(t, initial.Addresses, 6)
	require.Contains(t, initial.Addresses, netip.MustParsePrefix("198.51.100.17/28"))
	require.Contains(t, initial.Addresses, netip.MustParsePrefix("2001:db8:1::1/64"))

	// None of these is an address of this node in particular.
	for _, ignored := range []string{"127.0.0.2/8", "169.254.1.1/16", "fe80::1/64"} {
		require.NoError(t, l.ns.AddAddr("up0", netip.MustParsePrefix(ignored)))
	}
	// An address on the loopback is.
	for _, added := range []string{"203.0.113.77/32", "fd00::77/128"} {
		require.NoError(t, l.ns.AddAddr("lo", netip.MustParsePrefix(added)))
	}
	until(t, "two more addresses", 8, func() int { return len(r.Facts().Addresses) })
	now := r.Facts()
	require.Contains(t, now.Addresses, netip.MustParsePrefix("203.0.113.77/32"))
	require.Contains(t, now.Addresses, netip.MustParsePrefix("fd00::77/128"))
	require.False(t, now.Equal(initial))

	require.NoError(t, l.ns.DelAddr("lo", netip.MustParsePrefix("203.0.113.77/32")))
	require.NoError(t, l.ns.DelAddr("lo", netip.MustParsePrefix("fd00::77/128")))
	until(t, "as before", true, func() bool { return r.Facts().Equal(initial) })
}

func TestOwnNamespaceNeedsNoDescriptor(t *testing.T) {
	n, err := node.Open(node.Options{})
	require.NoError(t, err)
	require.NoError(t, n.Close())
	_, err = node.Open(node.Options{NetNS: 1 << 20})
	require.ErrorIs(t, err, unix.EBADF)
}

func TestKernelRelease(t *testing.T) {
	data, err := os.ReadFile("/proc/sys/kernel/osrelease")
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(data)), node.KernelRelease())
}

// codes returns the codes of the warnings that are about the given ones.
func codes(t testing.TB, n *node.Node, about ...string) []string {
	t.Helper()
	warnings, err := n.Warnings()
	require.NoError(t, err)
	var found []string
	for _, w := range warnings {
		for _, code := range about {
			if w.Code == code {
				found = append(found, code)
			}
		}
	}
	return found
}

func ExampleFacts_Equal() {
	fmt.Println(node.Facts{Uplinks: []string{"eth0"}}.Equal(node.Facts{Uplinks: []string{"eth1"}}))
	// Output: false
}
