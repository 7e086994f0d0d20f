// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// unlisted is a packet that a PortList of TCP 22 and UDP 53 does not list.
type unlisted struct {
	name   string
	packet func(src, dst netip.Addr) []byte
	only   testenv.Family // 0 for both
}

func ipPacket(proto uint8, transport ...byte) func(src, dst netip.Addr) []byte {
	return func(src, dst netip.Addr) []byte {
		return testenv.IPHeader{Src: src, Dst: dst, Proto: proto}.Packet(transport)
	}
}

func tcpSegment(port uint16, flags uint8) func(src, dst netip.Addr) []byte {
	return func(src, dst netip.Addr) []byte {
		return testenv.TCPSegment{
			Src: netip.AddrPortFrom(src, 40000), Dst: netip.AddrPortFrom(dst, port), Seq: 1, Ack: 1, Flags: flags,
		}.Packet()
	}
}

func udpDatagram(port uint16) func(src, dst netip.Addr) []byte {
	return func(src, dst netip.Addr) []byte {
		return testenv.UDPDatagram{Src: netip.AddrPortFrom(src, 40000), Dst: netip.AddrPortFrom(dst, port), Payload: []byte("knock")}.Packet()
	}
}

// icmpMessage takes the types of both families; the body is that of a timestamp request, long enough for the others.
func icmpMessage(type4, type6 uint8) func(src, dst netip.Addr) []byte {
	return func(src, dst netip.Addr) []byte {
		typ := type4
		if src.Is6() {
			typ = type6
		}
		// An error is the one message that testenv makes with any type.
		return testenv.ICMPError{From: src, To: dst, Type: typ, Info: 0x00070001, Quoted: make([]byte, 16)}.Packet()
	}
}

func unlistedPackets() []unlisted {
	tcp, udp := uint8(unix.IPPROTO_TCP), uint8(unix.IPPROTO_UDP)
	return []unlisted{
		{name: "SYN", packet: tcpSegment(23, testenv.SYN)},
		{name: "lone ACK", packet: tcpSegment(23, testenv.ACK)},
		{name: "lone ACK with data", packet: tcpSegment(23, testenv.ACK|testenv.PSH)},
		{name: "lone RST", packet: tcpSegment(23, testenv.RST)},
		{name: "lone SYN-ACK to a listed port", packet: tcpSegment(22, testenv.SYN|testenv.ACK)},
		{name: "no flags, to a listed port", packet: tcpSegment(22, 0)},
		{name: "TCP to a port of UDP", packet: tcpSegment(53, testenv.SYN)},
		{name: "TCP to port 0", packet: tcpSegment(0, testenv.SYN)},
		{name: "datagram", packet: udpDatagram(9)},
		{name: "UDP to a port of TCP", packet: udpDatagram(22)},
		{name: "SCTP to a port of TCP", packet: func(src, dst netip.Addr) []byte {
			return testenv.SCTPInit(netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(dst, 22), 1)
		}},
		{name: "UDP-Lite to a port of UDP", packet: ipPacket(unix.IPPROTO_UDPLITE, 0x9c, 0x40, 0, 53, 0, 0, 0, 0)},
		{name: "DCCP to a port of TCP", packet: ipPacket(unix.IPPROTO_DCCP, 0x9c, 0x40, 0, 22, 4, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0)},
		{name: "echo", packet: func(src, dst netip.Addr) []byte { return testenv.Echo{Src: src, Dst: dst, ID: 7, Seq: 1}.Packet() }},
		{name: "lone echo reply", packet: icmpMessage(0, 129)},
		{name: "timestamp or node information", packet: icmpMessage(13, 139)},
		{name: "address mask or node information reply", packet: icmpMessage(17, 140)},
		{name: "error about nothing", packet: icmpMessage(3, 1)},
		{name: "GRE", packet: ipPacket(unix.IPPROTO_GRE, 0, 0, 8, 0, 1, 2, 3, 4)},
		{name: "GRE of PPTP", packet: ipPacket(unix.IPPROTO_GRE, 0x30, 1, 0x88, 0x0b, 0, 4, 0, 22, 0, 0, 0, 1, 1, 2, 3, 4)},
		{name: "ESP", packet: ipPacket(unix.IPPROTO_ESP, 0, 0, 0, 1, 0, 0, 0, 1, 1, 2, 3, 4)},
		{name: "IP in IP", packet: ipPacket(unix.IPPROTO_IPIP, 1, 2, 3, 4)},
		{name: "protocol 253", packet: ipPacket(253, 1, 2, 3, 4)},
		{name: "TCP without a header", packet: ipPacket(tcp)},
		{name: "TCP ports and no more", packet: ipPacket(tcp, 0x9c, 0x40, 0, 22)},
		{name: "TCP header cut short", packet: ipPacket(tcp, 0x9c, 0x40, 0, 22, 0, 0, 0, 1, 0, 0, 0, 0)},
		{name: "UDP without a header", packet: ipPacket(udp)},
		{name: "UDP ports and no more", packet: ipPacket(udp, 0x9c, 0x40, 0, 53)},
		{name: "half a port", packet: ipPacket(udp, 0x9c, 0x40, 0)},
		{name: "SCTP without a header", packet: ipPacket(unix.IPPROTO_SCTP)},
		{name: "ICMP without a header", packet: func(src, dst netip.Addr) []byte { return ipPacket(icmpOf(src))(src, dst) }},
		// Genuine ones never cross a router: RFC 4861 has them at a hop limit of 255, RFC 3810 of 1.
		{name: "neighbour solicitation from afar", packet: icmpMessage(0, 135), only: testenv.IPv6},
		{name: "router advertisement from afar", packet: icmpMessage(0, 134), only: testenv.IPv6},
		{name: "MLD report from afar", packet: icmpMessage(0, 143), only: testenv.IPv6},
		{name: "no next header", packet: ipPacket(unix.IPPROTO_NONE, 1, 2, 3, 4), only: testenv.IPv6},
		{name: "destination options before an unlisted port", only: testenv.IPv6, packet: func(src, dst netip.Addr) []byte {
			syn := tcpSegment(23, testenv.SYN)(src, dst)
			// RFC 8200 4.6: next header TCP, length 8 bytes, PadN of 4.
			return ipPacket(unix.IPPROTO_DSTOPTS, append([]byte{tcp, 0, 1, 4, 0, 0, 0, 0}, syn[40:]...)...)(src, dst)
		}},
	}
}

func icmpOf(a netip.Addr) uint8 {
	if a.Is6() {
		return unix.IPPROTO_ICMPV6
	}
	return unix.IPPROTO_ICMP
}

// wires are captures on the way of a packet to the machine web.
type wires struct {
	p                            *plane
	router, uplink, atWeb, atExt *testenv.Capture
}

func (p *plane) wires() wires {
	topo := p.topo
	return wires{
		p:      p,
		router: testenv.CaptureT(p.t, topo.Router.NS, topo.NodeA.Name), uplink: testenv.CaptureT(p.t, topo.NodeA.NS, topo.NodeA.Uplink),
		atWeb: testenv.CaptureT(p.t, topo.Web.NS, topo.Web.If), atExt: testenv.CaptureT(p.t, topo.Ext.NS, clientIf),
	}
}

// requireSwallowed sends a packet of the client and makes sure that the node takes the one copy and does nothing at all with it.
func (w wires) requireSwallowed(t *testing.T, packet []byte) {
	t.Helper()
	sent, err := testenv.ParsePacket(packet)
	require.NoError(t, err)
	all := []*testenv.Capture{w.router, w.uplink, w.atWeb, w.atExt}
	require.NoError(t, testenv.ResetAll(all...))
	send(t, w.p.topo.Ext.NS, packet)
	require.NoError(t, testenv.FlushAll(all...))
	for _, c := range []struct {
		where   string
		capture *testenv.Capture
		copies  int
	}{{"the client", w.atExt, 1}, {"the router", w.router, 1}, {"the uplink", w.uplink, 1}, {"the machine", w.atWeb, 0}} {
		require.Equal(t, c.copies, c.capture.Count(func(pk testenv.Packet) bool { return concerns(pk, sent) }),
			"packets at %s: %v", c.where, c.capture.Packets())
	}
	require.Empty(t, flowsTo(t, w.p.topo.NodeA, sent.Dst))
}

// concerns matches a packet, its translations and the answers to it; neighbour discovery uses other addresses.
func concerns(pk, sent testenv.Packet) bool {
	client := sent.Src
	neighbours := pk.Proto == unix.IPPROTO_ICMPV6 && pk.ICMPType >= 133 && pk.ICMPType <= 137 && pk.TTL == 255
	return (pk.Src == client || pk.Dst == client || pk.Dst == sent.Dst || pk.Src == sent.Dst) && !neighbours
}

// TestPortListNeverPassesWhatIsNotListed: not to the machine, not back to the router, not to a process of the node, which listens on the
// unlisted ports and in one case has the public address itself.
func TestPortListNeverPassesWhatIsNotListed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		onNode bool
	}{{"address routed", false}, {"address on the node's loopback", true}} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			node, web := p.topo.NodeA, p.topo.Web
			if tc.onNode {
				for _, f := range testenv.Families() {
					require.NoError(t, node.NS.AddAddr("lo", netip.PrefixFrom(public(f, 11), public(f, 11).BitLen())))
				}
			}
			p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22), udpPort("dns", 53)}})
			overTCP().serveOn(t, web.NS, 22)
			overUDP().serveOn(t, web.NS, 53)
			processes := nodeProcesses(t, node)
			w := p.wires()
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				for _, u := range unlistedPackets() {
					if u.only != 0 && u.only != f {
						continue
					}
					t.Run(u.name, func(t *testing.T) {
						w.requireSwallowed(t, u.packet(p.topo.Ext.Addr(f), public(f, 11)))
					})
				}
				overTCP().connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 22))
				overUDP().connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 53))
			})
			for _, srv := range processes {
				require.Empty(t, srv.Peers(), "a process of the node got something")
			}
		})
	}
}

// nodeProcesses listen on the ports that the test knocks at.
func nodeProcesses(t *testing.T, node *testenv.Node) []*testenv.Server {
	var list []*testenv.Server
	for _, port := range []uint16{22, 23, 53} {
		list = append(list, overTCP().serveOn(t, node.NS, port))
	}
	for _, port := range []uint16{9, 22, 53} {
		list = append(list, overUDP().serveOn(t, node.NS, port))
	}
	return list
}

// TestUnlistedFromInsideGoesNowhere: a neighbour and a process of the node are refused as a client outside is (R12), and what they send
// is not handed to the router either.
func TestUnlistedFromInsideGoesNowhere(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	node, web := p.topo.NodeA, p.topo.Web
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22), udpPort("dns", 53)}})
	p.serve(p.topo.DB, exposure{name: "db", public: dual(20), whole: true})
	overTCP().serveOn(t, web.NS, 22)
	overTCP().serveOn(t, web.NS, 23)
	w := p.wires()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		toPublic := func(pk testenv.Packet) bool { return pk.Dst == public(f, 11) || pk.Src == public(f, 11) }
		for _, from := range []testenv.Host{p.topo.Pod.Host, p.topo.DB.Host, web.Host, node.Host} {
			t.Run(from.Name, func(t *testing.T) {
				require.NoError(t, w.atWeb.Reset())
				for _, u := range unlistedPackets() {
					if u.only != 0 && u.only != f {
						continue
					}
					err := testenv.SendIP(from.NS, u.packet(from.Addr(f), public(f, 11)))
					if from.NS == node.NS && testenv.IsUnreachable(err) {
						continue // the drop in its output hook
					}
					require.NoError(t, err, u.name)
				}
				w.atWeb.Never(t, "unlisted at the machine", func(pk testenv.Packet) bool {
					return pk.Dir == testenv.In && !isNeighbourDiscovery(pk) && pk.ICMPType != 143
				})
				w.uplink.Never(t, "handed to the router", toPublic)
				conn := overTCP().connect(t, from.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 22))
				require.Equal(t, netip.AddrPortFrom(web.Addr(f), 22), conn.PeerLocal)
				require.NoError(t, conn.Abort())
			})
		}
	})
}

// TestFieldCase_B31_NothingLoopsBetweenRouterAndNode: neither an unlisted port nor an address that lost its only endpoint.
func TestFieldCase_B31_NothingLoopsBetweenRouterAndNode(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web := p.topo.Web
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	overTCP().serveOn(t, web.NS, 22)
	w := p.wires()
	echo := func(src, dst netip.Addr) []byte { return testenv.Echo{Src: src, Dst: dst, ID: 7, Seq: 1}.Packet() }
	swallows := func(packets ...func(src, dst netip.Addr) []byte) {
		t.Helper()
		for _, f := range testenv.Families() {
			for _, packet := range packets {
				w.requireSwallowed(t, packet(p.topo.Ext.Addr(f), public(f, 11)))
			}
		}
	}
	swallows(tcpSegment(23, testenv.SYN), echo, udpDatagram(9))
	for _, f := range testenv.Families() {
		overTCP().connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 22))
	}
	p.objects.deleteSlices(tenantNamespace + "web")
	p.settle()
	swallows(tcpSegment(22, testenv.SYN), tcpSegment(23, testenv.SYN), echo, udpDatagram(9))
}

// TestWholeAddressSwallowsWhatCannotBeTracked: there is no flow to translate by, and the node must neither forward nor answer it.
func TestWholeAddressSwallowsWhatCannotBeTracked(t *testing.T) {
	t.Parallel()
	p := wholePlane(t)
	w := p.wires()
	untrackable := []string{
		"lone RST", "lone SYN-ACK to a listed port", "no flags, to a listed port", "error about nothing", "lone echo reply",
		"TCP without a header", "TCP ports and no more", "TCP header cut short", "UDP without a header", "UDP ports and no more", "half a port",
		"SCTP without a header", "ICMP without a header", "neighbour solicitation from afar", "MLD report from afar",
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		tried := 0
		for _, u := range unlistedPackets() {
			if !slices.Contains(untrackable, u.name) || u.only != 0 && u.only != f {
				continue
			}
			tried++
			t.Run(u.name, func(t *testing.T) { w.requireSwallowed(t, u.packet(p.topo.Ext.Addr(f), public(f, 10))) })
		}
		require.GreaterOrEqual(t, tried, len(untrackable)-2)
	})
}
