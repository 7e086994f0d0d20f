// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func dialTCP(t *testing.T, ns *NetNS, local, remote netip.AddrPort) *Conn {
	t.Helper()
	return dialed(t)(DialTCP(ns, local, remote, testTimeout))
}

func dialUDP(t *testing.T, ns *NetNS, local, remote netip.AddrPort) *Conn {
	t.Helper()
	return dialed(t)(DialUDP(ns, local, remote, testTimeout))
}

func dialed(t *testing.T) func(*Conn, error) *Conn {
	return func(c *Conn, err error) *Conn {
		t.Helper()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
}

var wildcard = netip.MustParseAddrPort("[::]:0")

func TestTCPAndUDPReportBothEnds(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	servers := map[string]*Server{"tcp": ListenTCP(t, topo.Web.NS, wildcard), "udp": ListenUDP(t, topo.Web.NS, wildcard)}
	dial := map[string]func(*testing.T, *NetNS, netip.AddrPort, netip.AddrPort) *Conn{"tcp": dialTCP, "udp": dialUDP}
	for network, srv := range servers {
		for _, f := range Families() {
			remote := srv.At(topo.Web.Addr(f))
			for _, local := range []netip.AddrPort{{}, LocalPort(5000), netip.AddrPortFrom(topo.Ext.Addr(f), 5001)} {
				c := dial[network](t, topo.Ext.NS, local, remote)
				require.Equal(t, topo.Ext.Addr(f), c.Local.Addr())
				require.Equal(t, c.Local, c.SeenByPeer)
				require.Equal(t, remote, c.PeerLocal)
				require.Equal(t, remote, c.RepliedFrom)
				require.Contains(t, srv.Peers(), Endpoints{Peer: c.Local, Local: remote})
				if local.Port() != 0 {
					require.Equal(t, local.Port(), c.Local.Port())
				}
				require.NoError(t, c.Send())
				require.NoError(t, c.RoundTrip())
				require.NoError(t, c.RoundTripSize(8000), "fragments or segments")
				require.NoError(t, c.Close())
			}
		}
	}
}

func TestServersOnOneAddressAndFamily(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	for _, f := range Families() {
		at := netip.AddrPortFrom(topo.Web.Addr(f), 7000)
		dialTCP(t, topo.Ext.NS, netip.AddrPort{}, ListenTCP(t, topo.Web.NS, at).Addr())
		dialUDP(t, topo.Ext.NS, netip.AddrPort{}, ListenUDP(t, topo.Web.NS, at).Addr())
		any := netip.AddrPortFrom(f.Default().Addr(), 7000+uint16(f))
		dialUDP(t, topo.Ext.NS, netip.AddrPort{}, ListenUDP(t, topo.Web.NS, any).At(topo.Web.Addr(f)))
	}
}

func TestOneClientPortToTwoAddresses(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	second := map[Family]netip.Addr{IPv4: netip.MustParseAddr("10.244.1.11"), IPv6: netip.MustParseAddr("fd00:10:244:1::11")}
	tcp, udp := ListenTCP(t, topo.Web.NS, wildcard), ListenUDP(t, topo.Web.NS, wildcard)
	for _, f := range Families() {
		require.NoError(t, topo.Web.NS.AddAddr(topo.Web.If, host(second[f])))
		require.NoError(t, topo.NodeA.NS.SetRoute(Route{Dst: host(second[f]), Dev: topo.Web.NodeIf}))
		a := dialTCP(t, topo.Ext.NS, LocalPort(5000), tcp.At(topo.Web.Addr(f)))
		b := dialTCP(t, topo.Ext.NS, LocalPort(5000), tcp.At(second[f]))
		require.Equal(t, a.Local, b.Local)
		require.NoError(t, a.RoundTrip())

		a = dialUDP(t, topo.Ext.NS, LocalPort(5000), udp.At(topo.Web.Addr(f)))
		b = dialed(t)(a.Also(udp.At(second[f])))
		require.Equal(t, a.SeenByPeer, b.SeenByPeer)
		require.Equal(t, second[f], b.PeerLocal.Addr(), "a wildcard server answers from where it was asked")
		require.NoError(t, a.RoundTrip())
		require.NoError(t, b.RoundTrip())
		require.NoError(t, a.Close())
	}
}

func TestAnswerFromAWrongAddressIsNoticed(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	udp := ListenUDP(t, topo.Web.NS, netip.MustParseAddrPort("[::]:53"))
	topo.NodeA.NS.NftScript(t, `table inet wrong {
		chain out { type filter hook postrouting priority 0; policy accept;
			ip saddr 10.244.1.10 ip saddr set 203.0.113.10
			ip6 saddr fd00:10:244:1::10 ip6 saddr set 2001:db8:203::10
		}
	}`)
	for _, f := range Families() {
		_, err := DialUDP(topo.Ext.NS, netip.AddrPort{}, udp.At(topo.Web.Addr(f)), testTimeout)
		require.ErrorIs(t, err, ErrWrongSource)
		require.False(t, IsUnreachable(err))
		_, err = Ping(topo.Ext.NS, netip.Addr{}, topo.Web.Addr(f), testTimeout)
		require.ErrorIs(t, err, ErrWrongSource)
	}
}

func TestTranslatedAddressesAreReported(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	srv := ListenTCP(t, topo.Web.NS, netip.MustParseAddrPort("[::]:8080"))
	topo.NodeA.NS.NftScript(t, `table inet nat {
		chain in { type nat hook prerouting priority -100;
			ip daddr 203.0.113.10 dnat ip to 10.244.1.10
			ip6 daddr 2001:db8:203::10 dnat ip6 to fd00:10:244:1::10
		}
	}`)
	for _, public := range []string{"203.0.113.10", "2001:db8:203::10"} {
		c := dialTCP(t, topo.Ext.NS, netip.AddrPort{}, srv.At(netip.MustParseAddr(public)))
		require.Equal(t, public, c.Remote.Addr().String())
		require.Equal(t, topo.Web.Addr(FamilyOf(c.Remote.Addr())), c.PeerLocal.Addr())
		require.Equal(t, c.Local, c.SeenByPeer)
	}
}

func TestUnreachableIsToldFromOtherErrors(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	for _, f := range Families() {
		closed := netip.AddrPortFrom(topo.Web.Addr(f), 9)
		_, err := DialTCP(topo.Ext.NS, netip.AddrPort{}, closed, testTimeout)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		require.True(t, IsUnreachable(err))
		start := time.Now()
		_, err = DialUDP(topo.Ext.NS, netip.AddrPort{}, closed, 50*time.Millisecond)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.True(t, IsUnreachable(err))
		require.Less(t, time.Since(start), time.Second)
		_, err = DialTCP(topo.Ext.NS, netip.AddrPortFrom(topo.Web.Addr(f), 1), closed, testTimeout)
		require.ErrorIs(t, err, syscall.EADDRNOTAVAIL)
		require.False(t, IsUnreachable(err))
	}
	topo.NodeA.NS.NftScript(t, `table inet block {
		chain f { type filter hook forward priority 0; policy drop; }
	}`)
	for _, f := range Families() {
		Unreachable(t, "TCP", func() error {
			_, err := DialTCP(topo.Ext.NS, netip.AddrPort{}, netip.AddrPortFrom(topo.Web.Addr(f), 9), 50*time.Millisecond)
			return err
		})
		Unreachable(t, "ping", func() error {
			_, err := Ping(topo.Ext.NS, netip.Addr{}, topo.Web.Addr(f), 50*time.Millisecond)
			return err
		})
	}
}

func TestServerCloseEndsItsConnections(t *testing.T) {
	t.Parallel()
	ns := NewT(t, "alone")
	srv, err := ServeTCP(ns, netip.MustParseAddrPort("127.0.0.1:0"))
	require.NoError(t, err)
	c := dialTCP(t, ns, netip.AddrPort{}, srv.Addr())
	require.NoError(t, srv.Close())
	require.Error(t, c.RoundTrip())

	again, err := ServeTCP(ns, srv.Addr())
	require.NoError(t, err)
	b, err := DialTCP(ns, LocalPort(6000), again.Addr(), testTimeout)
	require.NoError(t, err)
	require.NoError(t, b.Abort())
	b, err = DialTCP(ns, LocalPort(6000), again.Addr(), testTimeout)
	require.NoError(t, err, "a reset frees the port at once")
	require.NoError(t, b.Close())
	require.NoError(t, again.Close())
}
