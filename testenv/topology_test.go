// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const testTimeout = 2 * time.Second

func TestBuildIsFast(t *testing.T) {
	RequireRoot(t)
	start := time.Now()
	topo, err := Build(slog.New(slog.DiscardHandler))
	took := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, topo.Close())
	t.Log("built in", took)
	require.Less(t, took, 300*time.Millisecond)
}

func TestTopologyIsConnected(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{
		"plain":          nil,
		"strict rp":      {WithRPFilter("1")},
		"bridge":         {WithBridge()},
		"on-link bridge": {WithOnLinkBridge()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo := NewTopology(t, opts...)
			hosts := []*Host{
				topo.Ext, topo.Ext2, &topo.NodeA.Host, &topo.NodeB.Host,
				&topo.Web.Host, &topo.DB.Host, &topo.Pod.Host, &topo.Mail.Host,
			}
			for _, f := range Families() {
				for _, from := range hosts {
					for _, to := range hosts {
						_, err := Ping(from.NS, from.Addr(f), to.Addr(f), testTimeout)
						require.NoErrorf(t, err, "%s to %s", from.Name, to.Name)
					}
				}
			}
		})
	}
}

func TestFirstPacketsArriveAtOnce(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	for _, f := range Families() {
		start := time.Now()
		_, err := Ping(topo.Ext.NS, netip.Addr{}, topo.Web.Addr(f), testTimeout)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 500*time.Millisecond, "%s waits for a timer of the kernel", f)
	}
}

func TestNodeUsesItsAddressTowardsMachines(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	for _, f := range Families() {
		srv := ListenTCP(t, topo.Web.NS, netip.AddrPortFrom(topo.Web.Addr(f), 80))
		conn := dialTCP(t, topo.NodeA.NS, netip.AddrPort{}, srv.Addr())
		require.Equal(t, topo.NodeA.Addr(f), conn.SeenByPeer.Addr())
	}
}

func TestAnnounceMovesAnAddress(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	up := map[*Node]*Capture{
		topo.NodeA: CaptureT(t, topo.NodeA.NS, topo.NodeA.Uplink),
		topo.NodeB: CaptureT(t, topo.NodeB.NS, topo.NodeB.Uplink),
	}
	for i, text := range []string{"203.0.113.10", "2001:db8:203::10"} {
		public := netip.MustParseAddr(text)
		for j, node := range []*Node{topo.NodeA, topo.NodeB, topo.NodeA} {
			require.NoError(t, topo.Announce(public, node))
			probe := Echo{Src: topo.Ext.Addr(FamilyOf(public)), Dst: public, ID: uint16(10*i + j)}
			require.NoError(t, SendIP(topo.Ext.NS, probe.Packet()))
			arrived := func(p Packet) bool {
				return p.Dir == In && p.Dst == public && p.ICMPID == probe.ID && p.TTL == defaultTTL-1
			}
			_, ok := up[node].WaitFor(testTimeout, arrived)
			require.True(t, ok, "%s at %s", public, node.Name)
			for other, capture := range up {
				if other != node {
					capture.Never(t, "the old way", func(p Packet) bool { return p.Dst == public && p.ICMPID == probe.ID && p.Dir == In && j == 0 })
				}
			}
		}
		require.NoError(t, topo.Withdraw(public))
		_, err := Ping(topo.Ext.NS, netip.Addr{}, public, 50*time.Millisecond)
		require.Error(t, err)
	}
}

func TestMachinesComeAndGo(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{"plain": nil, "bridge": {WithBridge()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topo := NewTopology(t, opts...)
			addr := netip.MustParseAddr("10.244.1.77")
			for _, node := range []*Node{topo.NodeA, topo.NodeA} {
				m, err := topo.AddMachine(node, "a-machine-with-a-long-name", addr)
				require.NoError(t, err)
				_, err = Ping(topo.Ext.NS, netip.Addr{}, addr, testTimeout)
				require.NoError(t, err)
				require.NoError(t, topo.RemoveMachine(m))
			}
		})
	}
}

func TestWithoutRouterPodRoutes(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t, WithRouterPodRoutes(false))
	for _, f := range Families() {
		Unreachable(t, "a machine from outside", func() error {
			_, err := Ping(topo.Ext.NS, netip.Addr{}, topo.Web.Addr(f), 100*time.Millisecond)
			return err
		})
		_, err := Ping(topo.Ext.NS, netip.Addr{}, topo.NodeA.Addr(f), testTimeout)
		require.NoError(t, err)
	}
}

func TestPathMTUErrorsComeFromTheRouter(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	require.NoError(t, topo.Router.NS.SetMTU("ext", 1400))
	seen := CaptureT(t, topo.Web.NS, topo.Web.If)
	for _, f := range Families() {
		big := IPHeader{Src: topo.Web.Addr(f), Dst: topo.Ext.Addr(f), Proto: 253, DF: true}.Packet(make([]byte, 1450))
		require.NoError(t, SendIP(topo.Web.NS, big))
		p, ok := seen.WaitFor(testTimeout, func(p Packet) bool {
			quoted, ok := p.Quoted()
			return ok && p.Dir == In && quoted.Src == topo.Web.Addr(f) && quoted.Proto == 253
		})
		require.True(t, ok, f)
		require.Equal(t, topo.Router.Addr(f), p.Src)
		require.Contains(t, []uint8{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6}, p.Proto)
	}
}
