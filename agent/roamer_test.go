// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// roamer is a machine that is plugged in on both nodes and lives behind one of them, with its sockets, as a machine does that migrates.
type roamer struct {
	*testenv.Machine
	t testing.TB
	// plug is the machine's interface towards each node.
	plug map[*testenv.Node]string
}

// newRoamer makes a machine that lives on node-a and has an interface on node-b.
func newRoamer(t testing.TB, topo *testenv.Topology, name string, addrs ...netip.Addr) *roamer {
	t.Helper()
	m, err := topo.AddMachine(topo.NodeA, name, addrs...)
	require.NoError(t, err)
	r := &roamer{m, t, map[*testenv.Node]string{topo.NodeA: m.If, topo.NodeB: "eth1"}}
	far := topo.NodeB
	gateway := []netip.Prefix{netip.MustParsePrefix("169.254.1.1/32"), netip.MustParsePrefix("fe80::1/64")}
	require.NoError(t, testenv.Link(testenv.Side{NS: far.NS, Name: m.NodeIf, Addrs: gateway}, testenv.Side{NS: m.NS, Name: r.plug[far]}))
	for _, addr := range addrs {
		route := testenv.Route{Dst: alone(addr), Dev: m.NodeIf, Src: far.Addr(testenv.FamilyOf(addr))}
		require.NoError(t, far.NS.SetRoute(route))
	}
	require.NoError(t, m.NS.SetUp(r.plug[far], false))
	return r
}

// move is the moment in which the machine pauses here and goes on there, with all its connections.
func (r *roamer) move(to *testenv.Node) {
	r.t.Helper()
	plug := r.plug[to]
	for _, left := range r.plug {
		if left == plug {
			continue
		}
		require.NoError(r.t, r.NS.SetUp(left, false))
		defer func() { // IPv6 addresses went with the interface
			require.NoError(r.t, r.NS.DelAddr(left, alone(r.Addr4())))
		}()
	}
	require.NoError(r.t, r.NS.SetUp(plug, true))
	require.NoError(r.t, r.NS.AddAddr(plug, netip.MustParsePrefix("fe80::3/64")))
	for _, addr := range r.Addrs {
		f := testenv.FamilyOf(addr)
		require.NoError(r.t, r.NS.AddAddr(plug, alone(addr)))
		out := testenv.Route{Dst: f.Default(), Dev: plug, Via: netip.MustParseAddr("169.254.1.1")}
		if f == testenv.IPv6 {
			out.Via = netip.MustParseAddr("fe80::1")
		} else {
			out.Src = addr
		}
		require.NoError(r.t, r.NS.SetRoute(out))
	}
}

func alone(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }
