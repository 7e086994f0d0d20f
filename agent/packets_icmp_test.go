// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// TestPortListAnswersEchoOnlyWithAllowICMP, from the address that was pinged, and no other query at all.
func TestPortListAnswersEchoOnlyWithAllowICMP(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	p.serve(p.topo.Web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	w := p.wires()
	queries := []func(src, dst netip.Addr) []byte{
		icmpMessage(13, 139), // timestamp, node information
		icmpMessage(17, 140), // address mask, node information reply
		icmpMessage(15, 200), // information, unassigned
		icmpMessage(0, 129),  // echo reply
	}
	for _, step := range []struct {
		value  string
		passes bool
	}{{"", false}, {"false", false}, {"True", false}, {"true", true}, {"", false}} {
		p.edit("web", annotate(nat.AnnotationAllowICMP, step.value))
		for _, f := range testenv.Families() {
			ext := p.topo.Ext
			echo := testenv.Echo{Src: ext.Addr(f), Dst: public(f, 11), ID: 9, Seq: 1, Payload: []byte("echo")}
			if step.passes {
				_, err := echo.Ping(ext.NS, patience)
				require.NoError(t, err)
				require.NoError(t, w.atWeb.Flush())
				require.Equal(t, 1, w.atWeb.Count(func(pk testenv.Packet) bool {
					return pk.Dir == testenv.In && pk.ICMPID == 9 && pk.Src == ext.Addr(f) && pk.Dst == p.topo.Web.Addr(f)
				}))
				continue
			}
			w.requireSwallowed(t, echo.Packet())
		}
		// The flow of the answered echo is not one of a query.
		require.NoError(t, w.atWeb.Reset())
		for _, query := range queries {
			for _, f := range testenv.Families() {
				send(t, p.topo.Ext.NS, query(p.topo.Ext.Addr(f), public(f, 11)))
			}
		}
		w.atWeb.Never(t, "a query", func(pk testenv.Packet) bool { return pk.Dir == testenv.In && isClient(p, pk.Src) })
	}
}

func isClient(p *plane, a netip.Addr) bool {
	return a == p.topo.Ext.Addr4() || a == p.topo.Ext.Addr6()
}

// narrowMTU is less than that of every other link, and enough for IPv6.
const narrowMTU = 1300

// farClient is a client behind Ext, which is its router; the link between Ext and the router carries packets of narrowMTU at most. The
// client knows nothing of that: its own link is a usual one.
func (p *plane) farClient(t *testing.T) *testenv.Host {
	t.Helper()
	ext, router := p.topo.Ext, p.topo.Router
	far := &testenv.Host{Name: "far", NS: testenv.NewT(t, "far"), Addrs: []netip.Addr{
		netip.MustParseAddr("198.51.100.77"), netip.MustParseAddr("2001:db8:e::77"),
	}}
	// A second address of this link each; ext answers there with its own.
	gateway := map[testenv.Family]netip.Addr{testenv.IPv4: netip.MustParseAddr("198.51.100.70"), testenv.IPv6: netip.MustParseAddr("fe80::70")}
	single := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
	local := netip.MustParsePrefix("fe80::71/64")
	require.NoError(t, testenv.Link(
		testenv.Side{NS: ext.NS, Name: "far0", Addrs: []netip.Prefix{single(gateway[testenv.IPv4]), netip.PrefixFrom(gateway[testenv.IPv6], 64)}},
		testenv.Side{NS: far.NS, Name: clientIf, Addrs: []netip.Prefix{single(far.Addr4()), single(far.Addr6()), local}}))
	for path, value := range map[string]string{
		"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1",
	} {
		require.NoError(t, ext.NS.Sysctl(path, value))
	}
	for _, f := range testenv.Families() {
		via := netip.MustParseAddr("fe80::2") // Ext on its link with the router
		if f == testenv.IPv4 {
			via = ext.Addr(f)
		}
		require.NoError(t, router.NS.SetRoute(testenv.Route{Dst: single(far.Addr(f)), Dev: ext.Name, Via: via}))
		require.NoError(t, ext.NS.SetRoute(testenv.Route{Dst: single(far.Addr(f)), Dev: "far0"}))
		require.NoError(t, far.NS.SetRoute(testenv.Route{Dst: f.Default(), Dev: clientIf, Via: gateway[f]}))
	}
	require.NoError(t, router.NS.SetMTU(ext.Name, narrowMTU))
	require.NoError(t, ext.NS.SetMTU(clientIf, narrowMTU))
	return far
}

// tooBig matches an error about a packet's size that came in; the quoted packet was sent from the first address to the second.
func tooBig(quotedSrc, quotedDst netip.Addr) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		quoted, isError := p.Quoted()
		return isError && p.Dir == testenv.In && quoted.Src == quotedSrc && quoted.Dst == quotedDst &&
			(p.Proto == unix.IPPROTO_ICMP && p.ICMPType == 3 && p.ICMPCode == 4 || p.Proto == unix.IPPROTO_ICMPV6 && p.ICMPType == 2)
	}
}

// TestLargeTransfersFindThePathMTU: the machine and the client believe in 1500 bytes, a link between them carries less.
func TestLargeTransfersFindThePathMTU(t *testing.T) {
	t.Parallel()
	const size = 200_000 // bytes each way
	for _, tc := range []struct {
		name     string
		exposure exposure
	}{
		{"WholeIP", exposure{name: "web", public: dual(10), whole: true}},
		{"PortList without allowICMP", exposure{
			name: "web", public: dual(10), ports: []corev1.ServicePort{tcpPort("http", 80)}, targets: map[string]int32{"http": 8080},
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			web, far := p.topo.Web, p.farClient(t)
			p.serve(web, tc.exposure)
			for _, port := range []uint16{80, 8080} {
				overTCP().serveOn(t, web.NS, port)
			}
			outside := overTCP().serveOn(t, far.NS, 0)
			atWeb := testenv.CaptureT(t, web.NS, web.If)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				in := overTCP().connect(t, far.NS, anywhere(), netip.AddrPortFrom(public(f, 10), 80))
				require.NoError(t, in.RoundTripSize(size))
				toldAbout := arrival(t, atWeb, "the error about the answer", tooBig(web.Addr(f), far.Addr(f)))
				quoted, _ := toldAbout.Quoted()
				require.Equal(t, in.PeerLocal.Port(), quoted.SrcPort, "the quoted port is the machine's own")
				require.Equal(t, in.Local.Port(), quoted.DstPort)

				out := overTCP().connect(t, web.NS, anywhere(), outside.At(far.Addr(f)))
				require.NoError(t, out.RoundTripSize(size))
				require.Equal(t, public(f, 10), out.SeenByPeer.Addr())
				atWeb.Never(t, "error with the public address in it", func(pk testenv.Packet) bool {
					quoted, isError := pk.Quoted()
					return isError && (quoted.Src == public(f, 10) || quoted.Dst == public(f, 10))
				})
			})
		})
	}
}

// TestFieldCase_B33_PortListPassesErrorsAboutItsFlows: with the whole packet quoted and with 8 bytes of it. An error about no flow is
// not delivered, and echo stays refused.
func TestFieldCase_B33_PortListPassesErrorsAboutItsFlows(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext, router := p.topo.Web, p.topo.Ext, p.topo.Router
	p.serve(web, exposure{
		name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("https", 443)}, targets: map[string]int32{"https": 8443},
	})
	overTCP().serveOn(t, web.NS, 8443)
	outside := overUDP().serveOn(t, ext.NS, 0)
	w := p.wires()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.NoError(t, w.atExt.Reset())
		in := overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 443))
		require.NoError(t, in.RoundTripSize(1000))
		out := overUDP().connect(t, web.NS, anywhere(), outside.At(ext.Addr(f)))
		for _, flow := range []struct {
			name    string
			private netip.AddrPort // the machine's end
			proto   uint8
			min     int // bytes, to find a packet with payload
		}{{"inward", in.PeerLocal, unix.IPPROTO_TCP, 1000}, {"outward", out.Local, unix.IPPROTO_UDP, 100}} {
			sent := arrival(t, w.atExt, "packet of the machine", func(pk testenv.Packet) bool {
				return pk.Dir == testenv.In && pk.Src == public(f, 11) && pk.Proto == flow.proto && len(pk.Raw) > flow.min
			})
			for i, short := range []bool{false, true} {
				mtu := narrowMTU + i // tells the two errors apart
				e, err := testenv.PacketTooBig(router.Addr(f), mtu, sent.Raw)
				require.NoError(t, err)
				e.Short = short
				require.NoError(t, w.atWeb.Reset())
				send(t, router.NS, e.Packet())
				got := arrival(t, w.atWeb, fmt.Sprintf("%s, short %v", flow.name, short), tooBig(web.Addr(f), ext.Addr(f)))
				quoted, _ := got.Quoted()
				require.Equal(t, flow.private.Port(), quoted.SrcPort)
				require.Equal(t, []netip.Addr{router.Addr(f), web.Addr(f)}, []netip.Addr{got.Src, got.Dst})
				require.Equal(t, uint16(mtu), uint16(got.Transport[6])<<8|uint16(got.Transport[7]))
			}
		}
		for name, quoted := range map[string][]byte{
			"other port of the machine":      testenv.TCPSegment{Src: netip.AddrPortFrom(public(f, 11), 444), Dst: in.Local, Seq: 1, Flags: testenv.ACK}.Packet(),
			"other client":                   testenv.TCPSegment{Src: netip.AddrPortFrom(public(f, 11), 443), Dst: netip.AddrPortFrom(p.topo.Ext2.Addr(f), 1), Flags: testenv.ACK}.Packet(),
			"other protocol":                 testenv.IPHeader{Src: public(f, 11), Dst: ext.Addr(f), Proto: 253}.Packet(make([]byte, 16)),
			"private address of the machine": testenv.TCPSegment{Src: in.PeerLocal, Dst: netip.AddrPortFrom(ext.Addr(f), 7), Flags: testenv.ACK}.Packet(),
		} {
			e, err := testenv.PacketTooBig(router.Addr(f), 1280, quoted)
			require.NoError(t, err)
			e.To = public(f, 11)
			require.NoError(t, testenv.ResetAll(w.router, w.atWeb))
			send(t, router.NS, e.Packet())
			w.atWeb.Never(t, "error about no flow: "+name, func(pk testenv.Packet) bool { return pk.Src == router.Addr(f) })
			require.NoError(t, w.router.Flush())
			require.Equal(t, 1, w.router.Count(func(pk testenv.Packet) bool { return pk.Src == router.Addr(f) && pk.Dst == public(f, 11) }), name)
		}
		require.NoError(t, in.RoundTrip())
		require.NoError(t, w.atWeb.Reset())
		send(t, ext.NS, testenv.Echo{Src: ext.Addr(f), Dst: public(f, 11), ID: 9, Seq: 1}.Packet())
		w.atWeb.Never(t, "echo", func(pk testenv.Packet) bool { return pk.ICMPID == 9 })
	})
}

// TestErrorsOfTheMachinesSideComeFromThePublicAddress: a packet that is too big for the machine's link, and a closed port of the
// machine. The client knows the public address only, and gets the packet back as it sent it.
func TestErrorsOfTheMachinesSideComeFromThePublicAddress(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext, node := p.topo.Web, p.topo.Ext, p.topo.NodeA
	p.serve(web, exposure{name: "whole", age: 20, public: dual(10), whole: true})
	p.serve(web, exposure{
		name: "ports", age: 10, public: dual(11), ports: []corev1.ServicePort{udpPort("dns", 53)}, targets: map[string]int32{"dns": 5353},
	})
	require.NoError(t, node.NS.SetMTU(web.NodeIf, narrowMTU))
	require.NoError(t, web.NS.SetMTU(web.If, narrowMTU))
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, last := range []int{10, 11} {
			for i, size := range []int{narrowMTU + 50, 64} { // bytes of payload; the second is answered by the machine: nobody listens
				client, dialled := netip.AddrPortFrom(ext.Addr(f), uint16(41000+i)), netip.AddrPortFrom(public(f, last), 53)
				datagram := testenv.UDPDatagram{Src: client, Dst: dialled, Payload: make([]byte, size)}.Packet()
				if f == testenv.IPv4 {
					datagram[6] = 0x40 // do not fragment
				}
				send(t, ext.NS, datagram)
				got := arrival(t, atExt, fmt.Sprintf("error about %d bytes to %s", size, dialled), func(pk testenv.Packet) bool {
					quoted, isError := pk.Quoted()
					return isError && pk.Dir == testenv.In && quoted.SrcPort == client.Port() && quoted.Dst == dialled.Addr()
				})
				quoted, _ := got.Quoted()
				require.Equal(t, dialled, netip.AddrPortFrom(quoted.Dst, quoted.DstPort))
				require.Equal(t, client, netip.AddrPortFrom(quoted.Src, quoted.SrcPort))
				require.Equal(t, dialled.Addr(), got.Src, "the error comes from the address that was dialled")
			}
		}
		atExt.Never(t, "the private address", func(pk testenv.Packet) bool {
			quoted, _ := pk.Quoted()
			return pk.Src == web.Addr(f) || quoted.Dst == web.Addr(f)
		})
	})
}

// TestFieldCase_B34_PortListLeavesNeighbourDiscoveryAlone: with empty neighbour caches, on both sides of the machine's link and of the
// uplink.
func TestFieldCase_B34_PortListLeavesNeighbourDiscoveryAlone(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, node := p.topo.Web, p.topo.NodeA
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	overTCP().serveOn(t, web.NS, 22)
	atNode, atWeb := testenv.CaptureT(t, node.NS, web.NodeIf), testenv.CaptureT(t, web.NS, web.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, ns := range []*testenv.NetNS{node.NS, web.NS, p.topo.Router.NS} {
			forgetNeighbours(t, ns)
		}
		require.NoError(t, testenv.ResetAll(atNode, atWeb))
		overTCP().connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 22))
		for _, c := range []*testenv.Capture{atNode, atWeb} {
			c.Never(t, "neighbour discovery about a public address", func(pk testenv.Packet) bool {
				return isNeighbourDiscovery(pk) && (strings.HasPrefix(pk.Src.String(), "2001:db8:203:") || strings.HasPrefix(pk.Dst.String(), "2001:db8:203:"))
			})
		}
		if f == testenv.IPv6 {
			arrival(t, atWeb, "solicitation of the node", func(pk testenv.Packet) bool { return isNeighbourDiscovery(pk) && pk.Dir == testenv.In })
			arrival(t, atNode, "advertisement of the machine", func(pk testenv.Packet) bool { return isNeighbourDiscovery(pk) && pk.Dir == testenv.In })
		}
	})
}

func isNeighbourDiscovery(p testenv.Packet) bool {
	return p.Proto == unix.IPPROTO_ICMPV6 && (p.ICMPType == 135 || p.ICMPType == 136) && p.TTL == 255
}

func forgetNeighbours(t *testing.T, ns *testenv.NetNS) {
	t.Helper()
	nl, err := ns.Netlink()
	require.NoError(t, err)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := nl.NeighList(0, family)
		require.NoError(t, err)
		for _, n := range list {
			if n.State&(netlink.NUD_NOARP|netlink.NUD_PERMANENT) == 0 {
				require.NoError(t, nl.NeighDel(&n))
			}
		}
	}
}

// TestNeighbourDiscoveryFromAfarIsNoWayOut: a machine's packet that only has the type of neighbour discovery is not tracked, so it is
// not translated, and must not leave with its private source.
func TestNeighbourDiscoveryFromAfarIsNoWayOut(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	p.serve(web, exposure{name: "web", public: dual(10), whole: true})
	w := p.wires()
	const f = testenv.IPv6
	for _, typ := range []uint8{130, 131, 132, 133, 134, 135, 136, 137, 143} {
		send(t, web.NS, icmpMessage(0, typ)(web.Addr(f), ext.Addr(f)))
	}
	arrival(t, w.atWeb, "the last one", func(pk testenv.Packet) bool { return pk.ICMPType == 143 && pk.Src == web.Addr(f) })
	w.uplink.Never(t, "private source outside", func(pk testenv.Packet) bool { return pk.Src == web.Addr(f) })
}
