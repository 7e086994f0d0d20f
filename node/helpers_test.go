// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

const patience = 5 * time.Second

// lab is a namespace that plays the node, with three interfaces towards a peer.
type lab struct {
	ns, peer *testenv.NetNS
	nl       *netlink.Handle
}

func newLab(t testing.TB) *lab {
	t.Helper()
	l := &lab{ns: testenv.NewT(t, "node"), peer: testenv.NewT(t, "peer")}
	var err error
	l.nl, err = l.ns.Netlink()
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, testenv.Link(
			testenv.Side{NS: l.ns, Name: fmt.Sprintf("up%d", i), Addrs: []netip.Prefix{
				netip.MustParsePrefix(fmt.Sprintf("198.51.100.%d/28", 16*i+1)),
				netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::1/64", i)),
			}},
			testenv.Side{NS: l.peer, Name: fmt.Sprintf("peer%d", i)},
		))
	}
	return l
}

func gateway(f testenv.Family, i int) netip.Addr {
	if f == testenv.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::2", i))
	}
	return netip.MustParseAddr(fmt.Sprintf("198.51.100.%d", 16*i+2))
}

// defaultVia moves the default route to an interface.
func (l *lab) defaultVia(t testing.TB, f testenv.Family, i int) {
	t.Helper()
	require.NoError(t, l.ns.SetRoute(testenv.Route{Dst: f.Default(), Dev: fmt.Sprintf("up%d", i), Via: gateway(f, i)}))
}

func (l *lab) index(t testing.TB, name string) int {
	t.Helper()
	link, err := l.nl.LinkByName(name)
	require.NoError(t, err)
	return link.Attrs().Index
}

// settled returns when the events of everything before have been looked at, so that what comes next must bring its own.
func (l *lab) settled(t testing.TB, r *running) {
	t.Helper()
	marker := netip.MustParsePrefix("203.0.113.250/32")
	require.NoError(t, l.ns.AddAddr("lo", marker))
	until(t, "marker", true, func() bool { return slices.Contains(r.Facts().Addresses, marker) })
	require.NoError(t, l.ns.DelAddr("lo", marker))
	until(t, "no marker", false, func() bool { return slices.Contains(r.Facts().Addresses, marker) })
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (l *lab) open(t testing.TB, uplinks ...string) *node.Node {
	t.Helper()
	return l.openWith(t, node.Options{Uplinks: uplinks})
}

func (l *lab) openWith(t testing.TB, o node.Options) *node.Node {
	t.Helper()
	o.NetNS = l.ns.FD()
	n, err := node.Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return n
}

// running is a node that is followed until the end of the test.
type running struct {
	*node.Node
	calls atomic.Int64
	stop  func()
}

func (l *lab) follow(t testing.TB, uplinks ...string) *running {
	t.Helper()
	return l.followWith(t, node.Options{Uplinks: uplinks})
}

func (l *lab) followWith(t testing.TB, o node.Options) *running {
	t.Helper()
	r := &running{Node: l.openWith(t, o)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Run(ctx, func() { r.calls.Add(1) })
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(r.stop)
	return r
}

// until polls because the value is what counts, whichever event brings it.
func until[T any](t testing.TB, what string, want T, get func() T) {
	t.Helper()
	testenv.Eventually(t, patience, what, func() error {
		if got := get(); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

func (r *running) untilUplinks(t testing.TB, want ...string) {
	t.Helper()
	until(t, "uplinks", want, func() []string { return r.Facts().Uplinks })
}

func (r *running) untilWorkloads(t testing.TB, want ...string) {
	t.Helper()
	until(t, "workload interfaces", want, r.WorkloadInterfaces)
}
