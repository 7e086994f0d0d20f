// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/testenv"
)

// TestShardLendsItsAddressToMany: machines and neighbours that nobody manages leave with one address, and each gets its own answers.
func TestShardLendsItsAddressToMany(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	ext := p.topo.Ext
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	for _, tr := range []transport{overTCP(), overUDP()} {
		outside := tr.serveOn(t, ext.NS, 0)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			seen := map[netip.AddrPort]bool{}
			for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB, p.topo.Pod} {
				out := tr.connect(t, m.NS, testenv.LocalPort(40001), outside.At(ext.Addr(f)))
				require.Equal(t, public(f, 200), out.SeenByPeer.Addr())
				require.False(t, seen[out.SeenByPeer], "two at one port")
				seen[out.SeenByPeer] = true
				require.NoError(t, out.RoundTripSize(1200))
			}
		})
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB} {
			// The same identifier at both: the answer finds the one that asked.
			_, err := testenv.Echo{Dst: ext.Addr(f), ID: 77, Seq: 1, Payload: []byte(m.Name)}.Ping(m.NS, patience)
			require.NoError(t, err)
		}
	})
	uplink.Never(t, "a private source", isPrivate)
}

func TestShardPassesSCTP(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	for _, ns := range []*testenv.NetNS{web.NS, db.NS, ext.NS} {
		testenv.Absorb(t, ns, unix.IPPROTO_SCTP)
	}
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		far := netip.AddrPortFrom(ext.Addr(f), 6001)
		for i, m := range []*testenv.Machine{web, db} {
			tag := uint32(9 + i)
			atMachine := testenv.CaptureT(t, m.NS, m.If)
			own := netip.AddrPortFrom(m.Addr(f), 5001)
			require.NoError(t, atExt.Reset())
			send(t, m.NS, testenv.SCTPInit(own, far, tag))
			got := arrival(t, atExt, "INIT", func(pk testenv.Packet) bool {
				return pk.Dir == testenv.In && pk.Proto == unix.IPPROTO_SCTP && pk.Dst == ext.Addr(f) && pk.DstPort == 6001
			})
			require.Equal(t, public(f, 200), got.Src)
			send(t, ext.NS, testenv.SCTPInitAck(far, netip.AddrPortFrom(got.Src, got.SrcPort), tag, 10))
			arrival(t, atMachine, "INIT-ACK", sctp(far, own))
		}
	})
}

func TestShardPassesFragments(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	ext := p.topo.Ext
	outside := overUDP().serveOn(t, ext.NS, 0)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		out := overUDP().connect(t, p.topo.Web.NS, anywhere(), outside.At(ext.Addr(f)))
		require.NoError(t, uplink.Reset())
		require.NoError(t, out.RoundTripSize(4000))
		require.Equal(t, public(f, 200), out.SeenByPeer.Addr())
		requireFragments(t, uplink, ext.Addr(f), public(f, 200))
	})
	uplink.Never(t, "a private source", isPrivate)
}

// TestShardFindsThePathMTU: a router in the middle cannot pass what the machine sends.
func TestShardFindsThePathMTU(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	web, far := p.topo.Web, p.farClient(t)
	outside := overTCP().serveOn(t, far.NS, 0)
	atWeb := testenv.CaptureT(t, web.NS, web.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		out := overTCP().connect(t, web.NS, anywhere(), outside.At(far.Addr(f)))
		require.NoError(t, out.RoundTripSize(200_000))
		require.Equal(t, public(f, 200), out.SeenByPeer.Addr())
		told := arrival(t, atWeb, "the error about what the machine sent", tooBig(web.Addr(f), far.Addr(f)))
		quoted, _ := told.Quoted()
		require.Equal(t, out.Local.Port(), quoted.SrcPort, "the quoted port is the machine's own")
	})
}

// TestShardTranslatesErrorsAboutReplies: the reply is too big for the machine's link, or finds nobody. The error names the shard.
func TestShardTranslatesErrorsAboutReplies(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	web, ext, node := p.topo.Web, p.topo.Ext, p.topo.NodeA
	require.NoError(t, node.NS.SetMTU(web.NodeIf, narrowMTU))
	require.NoError(t, web.NS.SetMTU(web.If, narrowMTU))
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		far := netip.AddrPortFrom(ext.Addr(f), 7001)
		for i, size := range []int{narrowMTU + 50, 64} {
			mark := fmt.Sprintf("question %d %s", i, f)
			send(t, web.NS, testenv.UDPDatagram{Src: netip.AddrPortFrom(web.Addr(f), uint16(41000+i)), Dst: far, Payload: []byte(mark)}.Packet())
			asked := arrival(t, atExt, "question", marked(mark))
			answer := testenv.UDPDatagram{Src: far, Dst: netip.AddrPortFrom(asked.Src, asked.SrcPort), Payload: make([]byte, size)}.Packet()
			if f == testenv.IPv4 {
				answer[6] = 0x40 // do not fragment
			}
			send(t, ext.NS, answer)
			got := arrival(t, atExt, "error about the answer", func(pk testenv.Packet) bool {
				quoted, isError := pk.Quoted()
				return isError && pk.Dir == testenv.In && quoted.Src == ext.Addr(f) && quoted.SrcPort == 7001 && quoted.DstPort == asked.SrcPort
			})
			quoted, _ := got.Quoted()
			require.Equal(t, public(f, 200), quoted.Dst)
			require.Equal(t, public(f, 200), got.Src, "the machine or the node in front of it is not to be seen")
		}
	})
}

// TestFieldCase_B40_TwoMachinesAtOnePort to one peer, each with one fixed port.
func TestFieldCase_B40_TwoMachinesAtOnePort(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	for _, tr := range []transport{overTCP(), overUDP()} {
		outside := tr.serveOn(t, p.topo.Ext.NS, 0)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			a := tr.connect(t, p.topo.Web.NS, testenv.LocalPort(51820), outside.At(p.topo.Ext.Addr(f)))
			b := tr.connect(t, p.topo.DB.NS, testenv.LocalPort(51820), outside.At(p.topo.Ext.Addr(f)))
			require.NotEqual(t, a.SeenByPeer, b.SeenByPeer)
			for range 3 {
				require.NoError(t, a.RoundTrip())
				require.NoError(t, b.RoundTrip())
			}
		})
	}
}

// tolerated are the first packets that may be lost of thousands that race: ports are chosen at random, so that two get one in one of 60,000
// races. Where ports are kept, a good part of the races is lost.
const tolerated = 3

// TestFieldCase_B40_RacingDatagrams: two machines send from equal ports to one peer at the same instant, thousands of times. A port that both
// were given would cost one its datagram, which the kernel counts.
func TestFieldCase_B40_RacingDatagrams(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	const pairs = 2000
	testenv.Absorb(t, p.topo.Ext.NS, unix.IPPROTO_UDP)
	flows, err := conntrack.Open(p.topo.NodeA.NS.FD())
	require.NoError(t, err)
	failed := kernelCount(t, p.topo.NodeA, "insert_failed")
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		remote := netip.AddrPortFrom(p.topo.Ext.Addr(f), 51820)
		var round atomic.Int64
		var group sync.WaitGroup
		errs := make(chan error, 2)
		for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB} {
			socket := openRaw(t, m.NS, f)
			group.Go(func() {
				for i := range pairs {
					packet := testenv.UDPDatagram{Src: netip.AddrPortFrom(m.Addr(f), uint16(10000+i)), Dst: remote, Payload: []byte("hello")}.Packet()
					// Both are let go at once by whoever comes last.
					for round.Add(1); round.Load() < int64(2*(i+1)); {
						runtime.Gosched()
					}
					if err := socket(packet, remote.Addr()); err != nil {
						errs <- err
						round.Add(2 * pairs) // the other must not wait
						return
					}
				}
			})
		}
		group.Wait()
		close(errs)
		require.NoError(t, <-errs)
		use, err := conntrack.Use(t.Context(), flows, public(f, 200))
		require.NoError(t, err)
		require.GreaterOrEqual(t, use.Flows, 2*pairs-tolerated)
	})
	require.LessOrEqual(t, kernelCount(t, p.topo.NodeA, "insert_failed")-failed, tolerated)
}

// openRaw returns what sends packets from a namespace as they are, always by one socket.
func openRaw(t *testing.T, ns *testenv.NetNS, f testenv.Family) func(packet []byte, dst netip.Addr) error {
	t.Helper()
	domain := unix.AF_INET
	if f == testenv.IPv6 {
		domain = unix.AF_INET6
	}
	var fd int
	require.NoError(t, ns.Do(func() (err error) {
		fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		return err
	}))
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	return func(packet []byte, dst netip.Addr) error {
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: dst.As16()}
		if dst.Is4() {
			to = &unix.SockaddrInet4{Addr: dst.As4()}
		}
		return unix.Sendto(fd, packet, 0, to)
	}
}

// TestFieldCase_B40_RacingConnects: 2000 connections from each of two machines, from equal ports at the same time. A port that both were
// given would cost one its first packet, which the kernel counts.
func TestFieldCase_B40_RacingConnects(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	const each, workers = 2000, 16
	outside := overTCP().serveOn(t, p.topo.Ext.NS, 0)
	failed := kernelCount(t, p.topo.NodeA, "insert_failed")
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		remote := outside.At(p.topo.Ext.Addr(f))
		var group sync.WaitGroup
		errs := make(chan error, 2*workers)
		for w := range workers {
			var ready, start sync.WaitGroup
			ready.Add(2)
			start.Add(1)
			for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB} {
				group.Go(func() {
					ready.Done()
					start.Wait()
					for i := range each / workers {
						c, err := testenv.DialTCP(m.NS, testenv.LocalPort(uint16(10000+w*each/workers+i)), remote, patience)
						if err == nil {
							err = errors.Join(seenAs(c, public(f, 200)), c.Abort())
						}
						if err != nil {
							errs <- err
							return
						}
					}
				})
			}
			ready.Wait()
			start.Done()
		}
		group.Wait()
		close(errs)
		require.NoError(t, <-errs)
	})
	require.LessOrEqual(t, kernelCount(t, p.topo.NodeA, "insert_failed")-failed, tolerated)
}

func seenAs(c *testenv.Conn, want netip.Addr) error {
	if c.SeenByPeer.Addr() != want {
		return fmt.Errorf("seen as %s, not %s", c.SeenByPeer, want)
	}
	return nil
}

// TestFieldCase_B39_PortlessProtocolsOfTwoMachines: the peer cannot tell them apart, so the second is refused as long as the first one's
// flow lives; nobody gets the other's packets.
func TestFieldCase_B39_PortlessProtocolsOfTwoMachines(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	web, db, ext, ext2 := p.topo.Web, p.topo.DB, p.topo.Ext, p.topo.Ext2
	for name, proto := range map[string]uint8{"ESP": unix.IPPROTO_ESP, "GRE": unix.IPPROTO_GRE, "experimental": 253} {
		t.Run(name, func(t *testing.T) {
			for _, ns := range []*testenv.NetNS{web.NS, db.NS, ext.NS, ext2.NS} {
				testenv.Absorb(t, ns, proto)
			}
			packet := func(src, dst netip.Addr, mark string) []byte {
				return testenv.IPHeader{Src: src, Dst: dst, Proto: proto}.Packet([]byte("\x00\x00\x08\x00" + mark))
			}
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				atExt, atExt2 := testenv.CaptureT(t, ext.NS, clientIf), testenv.CaptureT(t, ext2.NS, clientIf)
				atWeb, atDB := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, db.NS, db.If)
				send(t, web.NS, packet(web.Addr(f), ext.Addr(f), "first"))
				require.Equal(t, public(f, 200), arrival(t, atExt, "first sender", marked("first")).Src)

				before := kernelCount(t, p.topo.NodeA, "insert_failed")
				send(t, db.NS, packet(db.Addr(f), ext.Addr(f), "second"))
				// To another peer there is nobody in the way.
				send(t, db.NS, packet(db.Addr(f), ext2.Addr(f), "elsewhere"))
				require.Equal(t, public(f, 200), arrival(t, atExt2, "to another peer", marked("elsewhere")).Src)
				require.Greater(t, kernelCount(t, p.topo.NodeA, "insert_failed"), before, "counted")

				send(t, ext.NS, packet(ext.Addr(f), public(f, 200), "answer"))
				arrival(t, atWeb, "answer", marked("answer"))
				atDB.Never(t, "the answer to the other", marked("answer"))
				atExt.Never(t, "the second sender", marked("second"))
			})
		})
	}
}

// TestShardLeavesOthersAlone: who has an address of its own, what answers, and what stays inside.
func TestShardLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	web, db, pod, mail, ext, node := p.topo.Web, p.topo.DB, p.topo.Pod, p.topo.Mail, p.topo.Ext, p.topo.NodeA
	p.serve(web, exposure{name: "web", public: dual(10), whole: true})
	p.serve(db, exposure{name: "db", public: dual(20), primary: "false", ports: []corev1.ServicePort{tcpPort("https", 443)}})
	overTCP().serveOn(t, db.NS, 443)
	outside, inside, remote := overTCP().serveOn(t, ext.NS, 0), overTCP().serveOn(t, pod.NS, 0), overTCP().serveOn(t, mail.NS, 0)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.Equal(t, public(f, 10), overTCP().leavesWith(t, web.NS, outside.At(ext.Addr(f))), "its own primary")
		require.Equal(t, public(f, 200), overTCP().leavesWith(t, db.NS, outside.At(ext.Addr(f))), "no primary: the shard")

		in := overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), 443)) // B25
		require.NoError(t, in.RoundTrip())
		require.NotContains(t, flowsTo(t, node, ext.Addr(f)), "sport=443", "the reply began no flow of its own")

		require.Equal(t, db.Addr(f), overTCP().leavesWith(t, db.NS, inside.At(pod.Addr(f))), "private to private")
		require.Equal(t, db.Addr(f), overTCP().leavesWith(t, db.NS, remote.At(mail.Addr(f))), "to the other node by the uplink")
		far := p.privateAddrOf(t, ext, f)
		require.Equal(t, pod.Addr(f), overTCP().leavesWith(t, pod.NS, outside.At(far)), "private to private by the uplink, outside the cluster")
		require.Equal(t, node.Addr(f), overTCP().leavesWith(t, node.NS, outside.At(ext.Addr(f))), "the node's own")
	})
}

// privateAddrOf gives a client a private address outside the cluster ranges.
func (p *plane) privateAddrOf(t *testing.T, h *testenv.Host, f testenv.Family) netip.Addr {
	t.Helper()
	addr := map[testenv.Family]netip.Addr{testenv.IPv4: netip.MustParseAddr("172.31.0.7"), testenv.IPv6: netip.MustParseAddr("fd77::7")}[f]
	via := h.Addr(f)
	if f == testenv.IPv6 {
		via = netip.MustParseAddr("fe80::2") // the client on its link with the router
	}
	require.NoError(t, h.NS.AddAddr("lo", netip.PrefixFrom(addr, addr.BitLen())))
	require.NoError(t, p.topo.Router.NS.SetRoute(testenv.Route{Dst: netip.PrefixFrom(addr, addr.BitLen()), Dev: h.Name, Via: via}))
	return addr
}

// TestShardLeavesTheNodesPrivateAddressAlone: a node that has a private address itself is no shard source.
func TestShardLeavesTheNodesPrivateAddressAlone(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	node, ext := p.topo.NodeA, p.topo.Ext
	outside := overTCP().serveOn(t, ext.NS, 0)
	own := map[testenv.Family]netip.Addr{testenv.IPv4: netip.MustParseAddr("10.9.9.1"), testenv.IPv6: netip.MustParseAddr("fd99::1")}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.NoError(t, node.NS.AddAddr("lo", netip.PrefixFrom(own[f], own[f].BitLen())))
		require.NoError(t, p.topo.Announce(own[f], node))
		testenv.Eventually(t, patience, "the kernel delivers to its new address", func() error {
			_, err := testenv.Ping(p.topo.Router.NS, netip.Addr{}, own[f], soon)
			return err
		})
		p.settle()
		conn := overTCP().connect(t, node.NS, netip.AddrPortFrom(own[f], 0), outside.At(ext.Addr(f)))
		require.Equal(t, own[f], conn.SeenByPeer.Addr())
	})
}
