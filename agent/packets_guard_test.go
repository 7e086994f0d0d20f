// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// strays are packets of one sender, whatever conntrack thinks of them, that fit no connection.
func strays(t *testing.T, src, dst netip.Addr) [][]byte {
	t.Helper()
	list := unlistedPackets()
	for _, flags := range []uint8{testenv.SYN | testenv.ACK, testenv.RST, testenv.RST | testenv.ACK, testenv.FIN, testenv.FIN | testenv.ACK} {
		list = append(list, unlisted{packet: tcpSegment(appPort, flags)})
	}
	// Errors about connections that are not there.
	list = append(list, unlisted{packet: func(src, dst netip.Addr) []byte {
		tooBig, err := testenv.PacketTooBig(src, 1400, udpDatagram(4001)(dst, src))
		require.NoError(t, err)
		return tooBig.Packet()
	}})
	var packets [][]byte
	for _, u := range list {
		if u.only == 0 || u.only == testenv.FamilyOf(src) {
			packets = append(packets, u.packet(src, dst))
		}
	}
	return packets
}

// requireUntouched sends packets and makes sure that all of them come to a capture as they were.
func requireUntouched(t *testing.T, from *testenv.NetNS, at *testenv.Capture, packets [][]byte) {
	t.Helper()
	require.NoError(t, at.Reset())
	for _, packet := range packets {
		send(t, from, packet)
	}
	require.NoError(t, at.Flush())
	for _, packet := range packets {
		sent, err := testenv.ParsePacket(packet)
		require.NoError(t, err)
		require.Positive(t, at.Count(func(pk testenv.Packet) bool {
			return pk.Src == sent.Src && pk.Dst == sent.Dst && pk.Proto == sent.Proto && bytes.Equal(pk.Transport, sent.Transport)
		}), "missing: %s", sent)
	}
}

// TestStrayPacketsOfMachinesStayIn: what conntrack cannot translate does not leave, and what it can leaves translated.
func TestStrayPacketsOfMachinesStayIn(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, mail, ext := p.topo.Web, p.topo.Mail, p.topo.Ext
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	atMail, atExt := testenv.CaptureT(t, mail.NS, mail.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, dst := range []netip.Addr{ext.Addr(f), public(f, 30), p.topo.Router.Addr(f)} {
			for _, packet := range strays(t, web.Addr(f), dst) {
				send(t, web.NS, packet)
			}
		}
		uplink.Never(t, "private source", leaving(web.Addr(f)))
		require.NoError(t, atExt.Flush())
		require.Positive(t, atExt.Count(func(pk testenv.Packet) bool {
			return pk.Dir == testenv.In && pk.Src == public(f, 10) && pk.TCPFlags == testenv.SYN
		}), "what is new is translated")
		// Inside the cluster the machine may send what it likes.
		requireUntouched(t, web.NS, atMail, strays(t, web.Addr(f), mail.Addr(f)))
	})
}

// TestStrayPacketsOfMachinesStayInOnEveryInterface: also where there is more than one way out and the packet takes another.
func TestStrayPacketsOfMachinesStayInOnEveryInterface(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	p.restart("node-a", func() {}, func(o *agent.Options) { o.Uplinks = []string{"another"} })
	web, ext := p.topo.Web, p.topo.Ext
	out := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, packet := range strays(t, web.Addr(f), ext.Addr(f)) {
			send(t, web.NS, packet)
		}
		out.Never(t, "private source", leaving(web.Addr(f)))
		visit{name: "connection", from: web.NS, to: ext.Addr(f), sees: public(f, 10)}.check(t)
	})
}

// TestNeighboursOfMachinesAreNotFiltered: the pod sends the same, outwards and to a public address of the other node.
func TestNeighboursOfMachinesAreNotFiltered(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	pod := p.topo.Pod
	atRouter := testenv.CaptureT(t, p.topo.Router.NS, p.topo.NodeA.Name)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, dst := range []netip.Addr{p.topo.Ext.Addr(f), public(f, 30)} {
			requireUntouched(t, pod.NS, atRouter, strays(t, pod.Addr(f), dst))
		}
	})
}

// TestNothingPrivateLeavesWhileFlowsVanish: whoever flushes the connection table, traffic goes on and nothing leaks.
func TestNothingPrivateLeavesWhileFlowsVanish(t *testing.T) {
	t.Parallel()
	testenv.RequireTool(t, "conntrack")
	p := machinesPlane(t)
	p.serve(p.topo.DB, exposure{name: "db", public: dual(20), ports: []corev1.ServicePort{tcpPort("tcp", appPort), udpPort("udp", appPort)}})
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	atRouter := testenv.CaptureT(t, p.topo.Router.NS, p.topo.NodeA.Name)
	var conns []*testenv.Conn
	for _, f := range testenv.Families() {
		out := netip.AddrPortFrom(p.topo.Ext.Addr(f), appPort)
		for _, tr := range []transport{overTCP(), overUDP()} {
			conns = append(conns,
				tr.connect(t, p.topo.Web.NS, anywhere(), out), tr.connect(t, p.topo.DB.NS, anywhere(), out),
				tr.connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort)),
				tr.connect(t, p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), appPort)))
		}
	}
	loaded := load(conns)
	for i := range 20 {
		// A reset without a flow is what conntrack translates for nobody.
		short := overTCP().connect(t, p.topo.Web.NS, anywhere(), netip.AddrPortFrom(p.topo.Ext.Addr(testenv.Families()[i%2]), appPort))
		_, err := p.topo.NodeA.NS.Run(t.Context(), "conntrack", "-F")
		require.NoError(t, err)
		require.NoError(t, short.Abort())
	}
	require.Greater(t, loaded(), len(conns), "round trips")
	for _, c := range []*testenv.Capture{uplink, atRouter} {
		c.Never(t, "private address", func(pk testenv.Packet) bool {
			for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB} {
				if pk.Src == m.Addr4() || pk.Src == m.Addr6() {
					return true
				}
			}
			return false
		})
	}
	for _, conn := range conns {
		conn.SetTimeout(patience)
		require.NoError(t, conn.RoundTrip(), "goes on")
	}
}

// load makes round trips on all connections, until the function is called that says how many there were. A lost datagram is no fault.
func load(conns []*testenv.Conn) (stop func() int) {
	end := make(chan struct{})
	counts := make([]int, len(conns))
	var work sync.WaitGroup
	for i, conn := range conns {
		conn.SetTimeout(soon)
		work.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
					if conn.RoundTrip() == nil {
						counts[i]++
					}
				}
			}
		})
	}
	return func() int {
		close(end)
		work.Wait()
		sum := 0
		for _, n := range counts {
			sum += n
		}
		return sum
	}
}

// TestUntrackedPacketsOfMachinesStayIn: others may keep packets from being tracked.
func TestUntrackedPacketsOfMachinesStayIn(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, pod, mail, ext, nodeA := p.topo.Web, p.topo.Pod, p.topo.Mail, p.topo.Ext, p.topo.NodeA
	uplink := testenv.CaptureT(t, nodeA.NS, nodeA.Uplink)
	nodeA.NS.NftScript(t, foreign("type filter hook prerouting priority raw\niifname { va0, vp0 } notrack"))
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		allRefused(t, visit{name: "outwards", from: web.NS, to: ext.Addr(f)}, visit{name: "inwards", from: ext.NS, to: public(f, 10)})
		uplink.Never(t, "private source", leaving(web.Addr(f)))
		visit{name: "in the cluster", from: web.NS, to: mail.Addr(f), sees: web.Addr(f), at: mail.Addr(f)}.check(t)
		visit{name: "probe", from: nodeA.NS, to: web.Addr(f), sees: nodeA.Addr(f), at: web.Addr(f)}.check(t)
		visit{name: "neighbour", from: pod.NS, to: ext.Addr(f), sees: pod.Addr(f)}.check(t)
	})
}

// TestStrayPacketsToMachinesStayIn: what a neighbour sends to an address of this node, and conntrack cannot translate, does not go round
// by the router.
func TestStrayPacketsToMachinesStayIn(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	pod, web := p.topo.Pod, p.topo.Web
	uplink, atWeb := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink), testenv.CaptureT(t, web.NS, web.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, packet := range strays(t, pod.Addr(f), public(f, 10)) {
			send(t, pod.NS, packet)
		}
		uplink.Never(t, "a way round", func(pk testenv.Packet) bool { return pk.Dst == public(f, 10) || pk.Src == pod.Addr(f) })
		arrival(t, atWeb, "what is new is translated", func(pk testenv.Packet) bool { return pk.Src == pod.Addr(f) && pk.TCPFlags == testenv.SYN })
	})
}

// TestUntrackedPacketsFromOutsideAreSwallowed: none comes to a process of the node, even if the node has the address, or goes back to
// the router.
func TestUntrackedPacketsFromOutsideAreSwallowed(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	nodeA := p.topo.NodeA
	nodeA.NS.NftScript(t, foreign("type filter hook prerouting priority raw\niifname up0 notrack"))
	p.announce(30, nodeA)
	for _, f := range testenv.Families() {
		for _, last := range []int{10, 30} {
			require.NoError(t, nodeA.NS.AddAddr("lo", netip.PrefixFrom(public(f, last), public(f, last).BitLen())))
		}
	}
	p.settle()
	uplink := testenv.CaptureT(t, nodeA.NS, nodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		allRefused(t, visit{name: "hosted here", from: p.topo.Ext.NS, to: public(f, 10)},
			visit{name: "hosted elsewhere", from: p.topo.Ext.NS, to: public(f, 30)})
		uplink.Never(t, "a packet back", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.Out && (pk.Dst == public(f, 10) || pk.Dst == public(f, 30) || pk.Dst == p.topo.Ext.Addr(f))
		})
		visit{name: "neighbour", from: p.topo.Ext.NS, to: p.topo.Pod.Addr(f), sees: p.topo.Ext.Addr(f)}.check(t)
	})
}

// segment is where a TCP packet of a connection was in the stream.
func segment(pk testenv.Packet) (seq, ack uint32) {
	return binary.BigEndian.Uint32(pk.Transport[4:]), binary.BigEndian.Uint32(pk.Transport[8:])
}

// TestFieldCase_B28_OutOfWindowSegmentsHurtNobody, injected from each side of connections in both directions.
func TestFieldCase_B28_OutOfWindowSegmentsHurtNobody(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	uplink, port := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink), testenv.CaptureT(t, p.topo.NodeA.NS, web.NodeIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, way := range []struct {
			name     string
			from     *testenv.NetNS
			to       netip.Addr
			outwards bool
		}{{"inwards", ext.NS, public(f, 10), false}, {"outwards", web.NS, ext.Addr(f), true}} {
			for _, c := range []*testenv.Capture{atWeb, atExt, uplink, port} {
				require.NoError(t, c.Reset())
			}
			conn := overTCP().connect(t, way.from, anywhere(), netip.AddrPortFrom(way.to, appPort))
			// The packets as each side sends them.
			for _, side := range []struct {
				ns *testenv.NetNS
				at *testenv.Capture
			}{{ext.NS, atExt}, {web.NS, atWeb}} {
				own := arrival(t, side.at, "segment with data", func(pk testenv.Packet) bool {
					return pk.Dir == testenv.Out && pk.Proto == unix.IPPROTO_TCP && pk.TCPFlags&testenv.PSH != 0
				})
				seq, ack := segment(own)
				src, dst := netip.AddrPortFrom(own.Src, own.SrcPort), netip.AddrPortFrom(own.Dst, own.DstPort)
				for _, far := range []uint32{1 << 30, 1<<31 + 1<<30} { // ahead and behind
					send(t, side.ns, testenv.TCPSegment{
						Src: src, Dst: dst, Seq: seq + far, Ack: ack, Flags: testenv.ACK | testenv.PSH, Payload: []byte("far away"),
					}.Packet())
					send(t, side.ns, testenv.TCPSegment{Src: src, Dst: dst, Seq: seq, Ack: ack + far, Flags: testenv.ACK}.Packet())
					require.NoError(t, conn.RoundTrip(), way.name)
				}
			}
			for _, c := range []*testenv.Capture{uplink, port, atWeb, atExt} {
				c.Never(t, way.name+": reset", func(pk testenv.Packet) bool { return pk.TCPFlags&testenv.RST != 0 })
			}
			uplink.Never(t, way.name+": private address", func(pk testenv.Packet) bool { return pk.Src == web.Addr(f) })
			// The connections of the other family may still be closing.
			arrived := func(pk testenv.Packet) bool {
				return pk.Dir == testenv.In && pk.Proto == unix.IPPROTO_TCP && testenv.FamilyOf(pk.Src) == f
			}
			atExt.Never(t, way.name+": wrong source", func(pk testenv.Packet) bool { return arrived(pk) && pk.Src != public(f, 10) })
			atWeb.Never(t, way.name+": wrong destination", func(pk testenv.Packet) bool { return arrived(pk) && pk.Dst != web.Addr(f) })
			require.NoError(t, conn.RoundTrip(), way.name)
		}
	})
}
