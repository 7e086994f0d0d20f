// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// webPort is the port that every address of severalAddresses forwards, in TCP, UDP and SCTP.
const webPort = 80

// severalAddresses gives the machine web three addresses in each family, both methods mixed. The oldest Service has 10, the youngest 12.
func severalAddresses(t testing.TB) *plane {
	p := tenantPlane(t)
	for _, f := range testenv.Families() {
		require.NoError(t, p.topo.Announce(public(f, 12), p.topo.NodeA))
	}
	for _, e := range threeExposures() {
		p.serve(p.topo.Web, e)
	}
	return p
}

func threeExposures() []exposure {
	ports := []corev1.ServicePort{
		tcpPort("tcp", webPort), udpPort("udp", webPort), {Name: "sctp", Port: webPort, Protocol: corev1.ProtocolSCTP},
	}
	return []exposure{
		{name: "oldest", age: 30, public: dual(10), whole: true},
		{name: "middle", age: 20, public: dual(11), ports: ports, icmp: true},
		{name: "youngest", age: 10, public: dual(12), whole: true},
	}
}

func TestEachAddressOfAMachineAnswersItself(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	tcp, udp := overTCP().serveOn(t, web.NS, webPort), overUDP().serveOn(t, web.NS, webPort)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, last := range []int{10, 11, 12} {
			for _, conn := range []*testenv.Conn{
				overTCP().connect(t, ext.NS, anywhere(), tcp.At(public(f, last))),
				overUDP().connect(t, ext.NS, anywhere(), udp.At(public(f, last))),
			} {
				require.Equal(t, conn.Local, conn.SeenByPeer)
				require.Equal(t, netip.AddrPortFrom(web.Addr(f), webPort), conn.PeerLocal)
			}
			_, err := testenv.Ping(ext.NS, netip.Addr{}, public(f, last), patience)
			require.NoError(t, err)
		}
	})
}

// TestFieldCase_B26_OneClientPortToSeveralAddresses: all flows have the same tuple behind the translation, so the kernel changes the client's
// port for the machine in all but one. The client notices nothing.
func TestFieldCase_B26_OneClientPortToSeveralAddresses(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	tcp, udp := overTCP().serveOn(t, web.NS, webPort), overUDP().serveOn(t, web.NS, webPort)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		var open []*testenv.Conn
		for _, last := range []int{10, 11, 12} {
			open = append(open, overTCP().connect(t, ext.NS, testenv.LocalPort(5000), tcp.At(public(f, last))))
			if last == 10 {
				open = append(open, overUDP().connect(t, ext.NS, testenv.LocalPort(5000), udp.At(public(f, last))))
				continue
			}
			also, err := open[1].Also(udp.At(public(f, last)))
			require.NoError(t, err)
			open = append(open, also)
		}
		for _, last := range []int{10, 11, 12} {
			// One after the other, but the flow of the one before is still there.
			_, err := testenv.Echo{Dst: public(f, last), ID: 77, Seq: 1}.Ping(ext.NS, patience)
			require.NoError(t, err)
		}
		for range 3 {
			seen := map[netip.AddrPort]int{}
			for _, conn := range open {
				require.NoError(t, conn.RoundTrip())
				require.EqualValues(t, 5000, conn.Local.Port())
				require.Equal(t, ext.Addr(f), conn.SeenByPeer.Addr())
				seen[conn.SeenByPeer]++
			}
			for client, n := range seen {
				require.LessOrEqual(t, n, 2, "the machine tells the flows of %s apart, but TCP from UDP", client)
			}
		}
	})
}

func TestFieldCase_B26_OneClientPortToSeveralAddressesInSCTP(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	for _, ns := range []*testenv.NetNS{web.NS, ext.NS} {
		testenv.Absorb(t, ns, unix.IPPROTO_SCTP)
	}
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		client, server := netip.AddrPortFrom(ext.Addr(f), 5000), netip.AddrPortFrom(web.Addr(f), webPort)
		for i, last := range []int{10, 11, 12} {
			dialled := netip.AddrPortFrom(public(f, last), webPort)
			require.NoError(t, atWeb.Reset())
			send(t, ext.NS, testenv.SCTPInit(client, dialled, uint32(i+1)))
			init := arrival(t, atWeb, "INIT", func(p testenv.Packet) bool {
				return p.Dir == testenv.In && p.Proto == unix.IPPROTO_SCTP && p.Src == client.Addr()
			})
			require.Equal(t, server, netip.AddrPortFrom(init.Dst, init.DstPort))
			send(t, web.NS, testenv.SCTPInitAck(server, netip.AddrPortFrom(init.Src, init.SrcPort), uint32(i+1), uint32(i+100)))
			arrival(t, atExt, "INIT-ACK", sctp(dialled, client))
		}
	})
}

func TestOwnConnectionsLeaveWithThePrimary(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	tcp, udp := overTCP().serveOn(t, ext.NS, 0), overUDP().serveOn(t, ext.NS, 0)
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.Equal(t, public(f, 10), overTCP().leavesWith(t, web.NS, tcp.At(ext.Addr(f))))
		require.Equal(t, public(f, 10), overUDP().leavesWith(t, web.NS, udp.At(ext.Addr(f))))
		echo := testenv.Echo{Dst: ext.Addr(f), ID: 103, Seq: 1, Payload: []byte("own echo " + f.String())}
		_, err := echo.Ping(web.NS, patience)
		require.NoError(t, err)
		require.Equal(t, public(f, 10), arrival(t, atExt, "request", marked(string(echo.Payload))).Src)
	})
}

// TestProtocolsWithoutPortsAreNeverMixedUp: a client that speaks GRE or the like to two addresses of one machine makes two flows that
// nothing tells apart behind the translation. The first one goes on; the second is refused and never answered from the first address.
func TestProtocolsWithoutPortsAreNeverMixedUp(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	for _, ns := range []*testenv.NetNS{web.NS, ext.NS} {
		testenv.Absorb(t, ns, unix.IPPROTO_GRE)
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
		gre := func(src, dst netip.Addr, mark string) []byte {
			return testenv.IPHeader{Src: src, Dst: dst, Proto: unix.IPPROTO_GRE}.Packet([]byte("\x00\x00\x08\x00" + mark))
		}
		send(t, ext.NS, gre(ext.Addr(f), public(f, 10), "to the first"))
		send(t, ext.NS, gre(ext.Addr(f), public(f, 12), "to the second"))
		arrival(t, atWeb, "the first", marked("to the first"))
		atWeb.Never(t, "the second", marked("to the second"))
		send(t, web.NS, gre(web.Addr(f), ext.Addr(f), "answer"))
		require.Equal(t, public(f, 10), arrival(t, atExt, "answer", marked("answer")).Src)
		// Another client has no such clash.
		send(t, p.topo.Ext2.NS, gre(p.topo.Ext2.Addr(f), public(f, 12), "of another"))
		arrival(t, atWeb, "another client's", marked("of another"))
	})
}

// outbound is a machine's own connection that stays open.
type outbound struct {
	conn   *testenv.Conn
	leaves netip.Addr
}

// open connects from the machine web in TCP and UDP and expects the primary.
func (p *plane) open(t *testing.T, f testenv.Family, primary netip.Addr) []outbound {
	t.Helper()
	web, ext := p.topo.Web, p.topo.Ext
	var list []outbound
	for _, tr := range []transport{overTCP(), overUDP()} {
		srv := tr.serveOn(t, ext.NS, 0)
		conn := tr.connect(t, web.NS, anywhere(), srv.At(ext.Addr(f)))
		require.Equal(t, primary, conn.SeenByPeer.Addr(), tr.name)
		list = append(list, outbound{conn, primary})
	}
	return list
}

func requireStillOpen(t *testing.T, list []outbound) {
	t.Helper()
	for _, o := range list {
		require.NoError(t, o.conn.RoundTrip())
		require.Equal(t, o.leaves, o.conn.SeenByPeer.Addr(), "an open connection keeps its address")
	}
}

func TestMovingTheDesignationMovesNewConnectionsOnly(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		p := severalAddresses(t)
		srv := overTCP().serveOn(t, p.topo.Web.NS, webPort)
		inward := overTCP().connect(t, p.topo.Ext.NS, anywhere(), srv.At(public(f, 12)))
		open := p.open(t, f, public(f, 10))
		for _, step := range []struct {
			service, value string
			primary        int
		}{
			{"youngest", "true", 12},
			{"middle", "true", 11}, // of two designated the older
			{"middle", "", 12},
			{"youngest", "", 10},
			{"oldest", "false", 11},
			{"middle", "false", 12},
			{"oldest", "True", 10}, // neither "true" nor "false": as if absent
		} {
			p.edit(step.service, annotate(nat.AnnotationPrimary, step.value))
			open = append(open, p.open(t, f, public(f, step.primary))...)
			requireStillOpen(t, open)
			require.NoError(t, inward.RoundTrip())
		}
	})
}

// TestRemovingTheDesignatedServiceMovesNewConnectionsOnly: what left with the address that is gone is cut, everything else goes on.
func TestRemovingTheDesignatedServiceMovesNewConnectionsOnly(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		p := severalAddresses(t)
		before := p.open(t, f, public(f, 10))
		p.edit("youngest", annotate(nat.AnnotationPrimary, "true"))
		through := p.open(t, f, public(f, 12))
		atExt := testenv.CaptureT(t, p.topo.Ext.NS, clientIf)

		p.objects.deleteService(tenantNamespace + "youngest")
		p.settle()
		requireStillOpen(t, before)
		requireStillOpen(t, p.open(t, f, public(f, 10)))
		for _, gone := range through {
			gone.conn.SetTimeout(soon)
			if gone.conn.RoundTrip() == nil {
				require.NotEqual(t, gone.leaves, gone.conn.SeenByPeer.Addr(), "UDP starts again with another address")
			}
		}
		requireStillOpen(t, before)
		atExt.Never(t, "private source outside", func(pk testenv.Packet) bool { return pk.Src == p.topo.Web.Addr(f) })
	})
}

// TestFieldCase_B38_PrimaryDoesNotDependOnOrder restarts the agent and adds the Services in another order.
func TestFieldCase_B38_PrimaryDoesNotDependOnOrder(t *testing.T) {
	t.Parallel()
	p := severalAddresses(t)
	web, ext := p.topo.Web, p.topo.Ext
	srv := overTCP().serveOn(t, ext.NS, 0)
	requirePrimary := func(last int) {
		t.Helper()
		for _, f := range testenv.Families() {
			require.Equal(t, public(f, last), overTCP().leavesWith(t, web.NS, srv.At(ext.Addr(f))))
		}
	}
	requirePrimary(10)
	for range 5 {
		p.stop("node-a")
		requirePrimary(10) // translation goes on without the agent
		p.start("node-a")
		p.settle()
		requirePrimary(10)
	}
	list := threeExposures()
	for _, e := range list {
		p.objects.deleteService(tenantNamespace + e.name)
	}
	p.settle()
	for i, primary := range []int{12, 11, 10} { // the oldest of those that are there
		p.serve(web, list[len(list)-1-i])
		requirePrimary(primary)
	}
	p.edit("middle", annotate(nat.AnnotationPrimary, "true"))
	requirePrimary(11)
	p.objects.deleteService(tenantNamespace + "middle")
	p.settle()
	requirePrimary(10)
}

// TestPrimaryIsTheLowestAddressOfAService: within one Service the order of the list means nothing.
func TestPrimaryIsTheLowestAddressOfAService(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	srv := overTCP().serveOn(t, ext.NS, 0)
	for _, addrs := range [][]string{dual(10, 11), dual(11, 10)} {
		p.serve(web, exposure{name: "web", public: addrs, whole: true})
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			require.Equal(t, public(f, 10), overTCP().leavesWith(t, web.NS, srv.At(ext.Addr(f))))
		})
	}
}
