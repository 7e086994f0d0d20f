// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// spreadAddress is announced to node-b, although its machine is on node-a.
const spreadAddress = 12

// spreadPlane exposes web on node-a with externalTrafficPolicy: Cluster by an address that the router sends to node-b. The machine mail
// on node-b has the whole address 30.
func spreadPlane(t testing.TB, e exposure) *plane {
	t.Helper()
	p := nodesPlane(t)
	e.name, e.public, e.policy = "web", dual(spreadAddress), corev1.ServiceExternalTrafficPolicyCluster
	p.serve(p.topo.Web, e)
	p.serve(p.topo.Mail, exposure{name: "mail", public: dual(30), whole: true})
	p.announce(spreadAddress, p.topo.NodeB)
	answer(t, p.topo.Web.NS)
	return p
}

func (p *plane) announce(last int, node *testenv.Node) {
	p.t.Helper()
	for _, f := range testenv.Families() {
		require.NoError(p.t, p.topo.Announce(public(f, last), node))
	}
}

// methods are both ways to expose appPort and echo.
func methods() map[string]exposure {
	return map[string]exposure{
		"WholeIP":  {whole: true},
		"PortList": {icmp: true, ports: []corev1.ServicePort{tcpPort("tcp", appPort), udpPort("udp", appPort)}},
	}
}

// TestPolicyClusterTranslatesOnTheOtherNode: the machine sees that node, so that its answers go back there.
func TestPolicyClusterTranslatesOnTheOtherNode(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := spreadPlane(t, e)
			web, ext, nodeA, nodeB := p.topo.Web, p.topo.Ext, p.topo.NodeA, p.topo.NodeB
			atA, atB := testenv.CaptureT(t, nodeA.NS, nodeA.Uplink), testenv.CaptureT(t, nodeB.NS, nodeB.Uplink)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				spread := public(f, spreadAddress)
				visit{name: "client", from: ext.NS, to: spread, sees: nodeB.Addr(f), at: web.Addr(f)}.check(t)
				_, err := testenv.Ping(ext.NS, netip.Addr{}, spread, patience)
				require.NoError(t, err)
				atA.Never(t, "an answer that does not go back to the other node", func(pk testenv.Packet) bool {
					return pk.Src == spread || pk.Dst == ext.Addr(f)
				})
				require.NoError(t, atB.Flush())
				require.Positive(t, atB.Count(leaving(spread)), "answers by node-b")
			})
			if e.whole {
				return
			}
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				require.NoError(t, atB.Reset())
				visit{name: "not listed", from: ext.NS, to: public(f, spreadAddress), port: appPort + 1}.refused(t)
				atB.Never(t, "a packet that goes on", func(pk testenv.Packet) bool {
					return pk.Dir == testenv.Out && (pk.DstPort == appPort+1 || pk.ICMPType == 3)
				})
			})
		})
	}
}

// TestPolicyClusterTranslatesOnTheOwnNode: there the client is kept.
func TestPolicyClusterTranslatesOnTheOwnNode(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := spreadPlane(t, e)
			p.announce(spreadAddress, p.topo.NodeA)
			web, mail, ext, pod, nodeB := p.topo.Web, p.topo.Mail, p.topo.Ext, p.topo.Pod, p.topo.NodeB
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				spread := public(f, spreadAddress)
				visit{name: "client", from: ext.NS, to: spread, sees: ext.Addr(f), at: web.Addr(f)}.check(t)
				visit{name: "pod", from: pod.NS, to: spread, sees: pod.Addr(f), at: web.Addr(f)}.check(t)
				visit{name: "itself", from: web.NS, to: spread, sees: spread, at: web.Addr(f)}.check(t)
				// On the node that has no backend nobody's connection is translated.
				visit{name: "machine of the other node", from: mail.NS, to: spread, sees: public(f, 30), at: web.Addr(f)}.check(t)
				visit{name: "the other node", from: nodeB.NS, to: spread, sees: p.topo.NodeA.Addr(f), at: web.Addr(f)}.check(t)
			})
		})
	}
}

// TestPolicyClusterLeavesLocalWorkloadsAlone: what a machine beside the announced address dials leaves with its own primary, and comes
// back by the router.
func TestPolicyClusterLeavesLocalWorkloadsAlone(t *testing.T) {
	t.Parallel()
	p := spreadPlane(t, exposure{whole: true})
	web, mail, nodeB := p.topo.Web, p.topo.Mail, p.topo.NodeB
	atRouter := testenv.CaptureT(t, p.topo.Router.NS, nodeB.Name)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		spread := public(f, spreadAddress)
		mark := "left alone " + f.String()
		send(t, mail.NS, testenv.UDPDatagram{
			Src: netip.AddrPortFrom(mail.Addr(f), 4000), Dst: netip.AddrPortFrom(spread, 9), Payload: []byte(mark),
		}.Packet())
		got := arrival(t, atRouter, "datagram", marked(mark))
		require.Equal(t, []netip.Addr{public(f, 30), spread}, []netip.Addr{got.Src, got.Dst})
		visit{name: "there and back", from: mail.NS, to: spread, sees: nodeB.Addr(f), at: web.Addr(f)}.check(t)
	})
}

// TestPolicyClusterAdmitsTheTrueClient: node-b decides before it hides the client behind its own address.
func TestPolicyClusterAdmitsTheTrueClient(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e.sources = []string{"198.51.100.8/32", "2001:db8:e::8/128"}
			p := spreadPlane(t, e)
			atWeb := testenv.CaptureT(t, p.topo.Web.NS, p.topo.Web.If)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				spread := public(f, spreadAddress)
				visit{name: "not admitted", from: p.topo.Ext.NS, to: spread}.refused(t)
				_, err := testenv.Ping(p.topo.Ext.NS, netip.Addr{}, spread, soon)
				require.Error(t, err)
				atWeb.Never(t, "not admitted", func(pk testenv.Packet) bool {
					// Neighbour discovery has no identifier.
					return pk.Dst == p.topo.Web.Addr(f) && (pk.Proto != icmpOf(pk.Dst) || pk.ICMPID != 0)
				})
				visit{name: "admitted", from: p.topo.Ext2.NS, to: spread, sees: p.topo.NodeB.Addr(f), at: p.topo.Web.Addr(f)}.check(t)
				_, err = testenv.Ping(p.topo.Ext2.NS, netip.Addr{}, spread, patience)
				require.NoError(t, err)
			})
		})
	}
}

// TestPolicyLocalAgainStopsTheOtherNode, open connections included.
func TestPolicyLocalAgainStopsTheOtherNode(t *testing.T) {
	t.Parallel()
	p := spreadPlane(t, exposure{whole: true})
	ext, nodeB := p.topo.Ext, p.topo.NodeB
	var open []*testenv.Conn
	for _, f := range testenv.Families() {
		for _, tr := range []transport{overTCP(), overUDP()} {
			open = append(open, tr.connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, spreadAddress), appPort)))
		}
	}
	p.edit("web", func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	atB := testenv.CaptureT(t, nodeB.NS, nodeB.Uplink)
	for _, conn := range open {
		conn.SetTimeout(soon)
		testenv.Unreachable(t, conn.Remote.String(), conn.RoundTrip)
		require.Empty(t, flowsTo(t, nodeB, conn.Remote.Addr()))
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "new connection", from: ext.NS, to: public(f, spreadAddress)}.refused(t)
		atB.Never(t, "a packet back to the router", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.Out && (pk.Dst == public(f, spreadAddress) || pk.Dst == ext.Addr(f))
		})
	})
}

// TestPolicyClusterPassesErrors: path MTU works through both translations, in both directions.
func TestPolicyClusterPassesErrors(t *testing.T) {
	t.Parallel()
	p := spreadPlane(t, methods()["PortList"])
	web, ext := p.topo.Web, p.topo.Ext
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		conn := overUDP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, spreadAddress), appPort))
		for _, way := range []struct {
			name      string
			from      *testenv.NetNS
			sender    netip.Addr
			about, at testenv.UDPDatagram // as the sender knows it, and as the receiver does
			capture   *testenv.Capture
		}{
			{"inwards", p.topo.Router.NS, p.topo.Router.Addr(f), testenv.UDPDatagram{Src: conn.Remote, Dst: conn.Local},
				testenv.UDPDatagram{Src: conn.PeerLocal, Dst: conn.SeenByPeer}, atWeb},
			{"outwards", web.NS, web.Addr(f), testenv.UDPDatagram{Src: conn.SeenByPeer, Dst: conn.PeerLocal},
				testenv.UDPDatagram{Src: conn.Local, Dst: conn.Remote}, atExt},
		} {
			way.about.Payload = make([]byte, 1000)
			tooBig, err := testenv.PacketTooBig(way.sender, 1400, way.about.Packet())
			require.NoError(t, err)
			send(t, way.from, tooBig.Packet())
			got, _ := arrival(t, way.capture, way.name, func(pk testenv.Packet) bool {
				_, quotes := pk.Quoted()
				return pk.Dir == testenv.In && quotes
			}).Quoted()
			require.Equal(t, way.at.Src, netip.AddrPortFrom(got.Src, got.SrcPort), way.name)
			require.Equal(t, way.at.Dst, netip.AddrPortFrom(got.Dst, got.DstPort), way.name)
			require.NoError(t, way.capture.Reset())
		}
	})
}
