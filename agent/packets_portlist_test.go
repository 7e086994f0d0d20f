// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func sctpPort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolSCTP}
}

func TestPortListTranslatesPorts(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	named := tcpPort("https", 443)
	named.TargetPort = intstr.FromString("web-tls") // the slice says which number that is
	p.serve(web, exposure{
		name: "web", public: dual(11),
		ports:   []corev1.ServicePort{named, tcpPort("same", 22), tcpPort("dns-tcp", 53), udpPort("dns", 53), udpPort("other", 5000)},
		targets: map[string]int32{"https": 8443, "dns-tcp": 5353, "dns": 53, "other": 443},
	})
	for _, tc := range []struct {
		name         string
		over         transport
		port, target uint16
	}{
		{"named target port", overTCP(), 443, 8443},
		{"same port", overTCP(), 22, 22},
		{"TCP on the port that UDP has too", overTCP(), 53, 5353},
		{"UDP on the port that TCP has too", overUDP(), 53, 53},
		{"the target of one is the port of another", overUDP(), 5000, 443},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.over.serveOn(t, web.NS, tc.target)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				conn := tc.over.connect(t, ext.NS, testenv.LocalPort(40000), netip.AddrPortFrom(public(f, 11), tc.port))
				require.Equal(t, netip.AddrPortFrom(ext.Addr(f), 40000), conn.SeenByPeer, "the client is kept")
				require.Equal(t, netip.AddrPortFrom(web.Addr(f), tc.target), conn.PeerLocal)
			})
		})
	}
}

func TestPortListTranslatesSCTP(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	p.serve(web, exposure{
		name: "web", public: dual(11), ports: []corev1.ServicePort{sctpPort("sip", 5060)}, targets: map[string]int32{"sip": 5061},
	})
	for _, ns := range []*testenv.NetNS{web.NS, ext.NS} {
		testenv.Absorb(t, ns, unix.IPPROTO_SCTP)
	}
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		client, dialled, server := netip.AddrPortFrom(ext.Addr(f), 5000), netip.AddrPortFrom(public(f, 11), 5060), netip.AddrPortFrom(web.Addr(f), 5061)
		send(t, ext.NS, testenv.SCTPInit(client, dialled, 7))
		arrival(t, atWeb, "INIT", sctp(client, server))
		send(t, web.NS, testenv.SCTPInitAck(server, client, 7, 8))
		arrival(t, atExt, "INIT-ACK", sctp(dialled, client))
	})
}

// TestPortListServicesShareAnAddress: on different ports, for different machines.
func TestPortListServicesShareAnAddress(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	ext := p.topo.Ext
	p.serve(p.topo.Web, exposure{name: "web", age: 20, public: dual(20), ports: []corev1.ServicePort{tcpPort("http", 80)}})
	p.serve(p.topo.DB, exposure{name: "db", age: 10, public: dual(20), ports: []corev1.ServicePort{tcpPort("sql", 5432)}})
	web, db := overTCP().serveOn(t, p.topo.Web.NS, 80), overTCP().serveOn(t, p.topo.DB.NS, 5432)
	far := overTCP().serveOn(t, ext.NS, 0)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.Equal(t, p.topo.Web.Addr(f), overTCP().connect(t, ext.NS, anywhere(), web.At(public(f, 20))).PeerLocal.Addr())
		require.Equal(t, p.topo.DB.Addr(f), overTCP().connect(t, ext.NS, anywhere(), db.At(public(f, 20))).PeerLocal.Addr())
		require.Equal(t, public(f, 20), overTCP().leavesWith(t, p.topo.Web.NS, far.At(ext.Addr(f))), "the oldest claimant's backend")
		// The younger one's machine has no address for its own connections, and nothing private leaves (R8, R13).
		own := testenv.UDPDatagram{Src: netip.AddrPortFrom(p.topo.DB.Addr(f), 4000), Dst: far.At(ext.Addr(f)), Payload: []byte("own")}
		send(t, p.topo.DB.NS, own.Packet())
		uplink.Never(t, "connection of the younger one's machine", func(pk testenv.Packet) bool { return pk.SrcPort == 4000 })
	})
}

// TestFieldCase_B10_DeletingOneOfTwoServicesLeavesTheOther: of one machine, and of two machines.
func TestFieldCase_B10_DeletingOneOfTwoServicesLeavesTheOther(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	ext, db := p.topo.Ext, p.topo.DB
	p.serve(db, exposure{name: "db-udp", age: 20, public: dual(20), ports: []corev1.ServicePort{udpPort("dns", 53)}})
	p.serve(db, exposure{name: "db-tcp", age: 10, public: dual(20), ports: []corev1.ServicePort{tcpPort("dns", 53)}})
	p.serve(p.topo.Web, exposure{name: "web", age: 5, public: dual(20), ports: []corev1.ServicePort{tcpPort("http", 80)}})
	overTCP().serveOn(t, db.NS, 53)
	overUDP().serveOn(t, db.NS, 53)
	overTCP().serveOn(t, p.topo.Web.NS, 80)
	far := overTCP().serveOn(t, ext.NS, 0)
	var open, cut []*testenv.Conn
	for _, f := range testenv.Families() {
		open = append(open,
			overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), 53)),
			overTCP().connect(t, db.NS, anywhere(), far.At(ext.Addr(f))))
		cut = append(cut, overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), 80)))
	}
	cut = append(cut, overUDP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(testenv.IPv4, 20), 53)))
	atNode := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	for _, gone := range []string{"web", "db-udp"} {
		p.objects.deleteService(tenantNamespace + gone)
		p.settle()
		for _, conn := range open {
			require.NoError(t, conn.RoundTrip())
		}
	}
	for _, f := range testenv.Families() {
		overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), 53))
		require.Equal(t, public(f, 20), overTCP().leavesWith(t, db.NS, far.At(ext.Addr(f))))
	}
	for _, conn := range cut {
		conn.SetTimeout(soon)
		testenv.Unreachable(t, conn.Remote.String(), conn.RoundTrip)
	}
	atNode.Never(t, "reset of a connection", func(pk testenv.Packet) bool {
		return pk.TCPFlags&testenv.RST != 0 && (pk.SrcPort == 53 || pk.DstPort == 53)
	})
}

// TestFieldCase_B35_OwnConnectionsOfAPortListMachineWork, and open nothing for others.
func TestFieldCase_B35_OwnConnectionsOfAPortListMachineWork(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	atWeb := testenv.CaptureT(t, web.NS, web.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, tr := range []transport{overTCP(), overUDP()} {
			srv := tr.serveOn(t, ext.NS, 0)
			conn := tr.connect(t, web.NS, testenv.LocalPort(40000), srv.At(ext.Addr(f)))
			require.Equal(t, netip.AddrPortFrom(public(f, 11), 40000), conn.SeenByPeer)
			require.NoError(t, conn.RoundTrip())
		}
		_, err := testenv.Ping(web.NS, netip.Addr{}, ext.Addr(f), patience)
		require.NoError(t, err)
		// From another port of the same peer.
		client, dialled := netip.AddrPortFrom(ext.Addr(f), 40001), netip.AddrPortFrom(public(f, 11), 40000)
		send(t, ext.NS, testenv.TCPSegment{Src: client, Dst: dialled, Seq: 1, Flags: testenv.SYN}.Packet())
		send(t, ext.NS, testenv.UDPDatagram{Src: client, Dst: dialled, Payload: []byte("uninvited")}.Packet())
		atWeb.Never(t, "uninvited", func(pk testenv.Packet) bool { return pk.SrcPort == 40001 })
	})
}

// TestFieldCase_B37_PortNumbersMeetInBothDirections: the same number inside and outside, and different ones.
func TestFieldCase_B37_PortNumbersMeetInBothDirections(t *testing.T) {
	t.Parallel()
	for name, target := range map[string]int32{"port is target port": 80, "port differs": 8080} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			web, ext := p.topo.Web, p.topo.Ext
			e := exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("http", 80)}, targets: map[string]int32{"http": target}}
			p.serve(web, e)
			outside := overTCP().serveOn(t, ext.NS, 0)
			inward := func(f testenv.Family) {
				t.Helper()
				// Closed again, so that the machine can dial from the same port.
				inside, err := testenv.ServeTCP(web.NS, netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(target)))
				require.NoError(t, err)
				conn := overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 80))
				require.Equal(t, inside.At(web.Addr(f)), conn.PeerLocal)
				require.NoError(t, conn.Abort())
				require.NoError(t, inside.Close())
			}
			outward := func(f testenv.Family, local uint16, want netip.Addr) {
				t.Helper()
				conn := overTCP().connect(t, web.NS, testenv.LocalPort(local), outside.At(ext.Addr(f)))
				require.Equal(t, netip.AddrPortFrom(want, local), conn.SeenByPeer)
				require.NoError(t, conn.Abort())
			}
			for _, f := range testenv.Families() {
				inward(f)
				for _, local := range []uint16{80, 8080} {
					outward(f, local, public(f, 11))
				}
				inward(f)
			}
			p.edit("web", annotate(nat.AnnotationPrimary, "false"))
			for _, f := range testenv.Families() {
				inward(f) // without the egress
			}
			e.ports, e.targets = []corev1.ServicePort{tcpPort("other", 81)}, nil
			p.serve(web, e)
			for _, f := range testenv.Families() {
				for _, local := range []uint16{80, 8080} {
					outward(f, local, public(f, 11)) // without the ingress
				}
			}
		})
	}
}

// probes sends one packet of each kind from a client to an address and says what the machine got of them.
type probes struct {
	p    *plane
	from *testenv.Host
	at   *testenv.Capture
}

// got is what a client reaches of an address: TCP ports and SCTP ports.
type got struct{ tcp23, tcp22, sctp5060 bool }

func (pr probes) probe(t *testing.T, dst netip.Addr) got {
	t.Helper()
	require.NoError(t, pr.at.Reset())
	f := testenv.FamilyOf(dst)
	src := netip.AddrPortFrom(pr.from.Addr(f), 40009)
	for _, port := range []uint16{22, 23} {
		segment := testenv.TCPSegment{Src: src, Dst: netip.AddrPortFrom(dst, port), Seq: 1, Flags: testenv.SYN}
		send(t, pr.from.NS, segment.Packet())
	}
	send(t, pr.from.NS, testenv.SCTPInit(src, netip.AddrPortFrom(dst, 5060), 5))
	require.NoError(t, pr.at.Flush())
	has := func(proto uint8, port uint16) bool {
		return pr.at.Count(func(p testenv.Packet) bool {
			return p.Dir == testenv.In && p.Proto == proto && p.DstPort == port && p.Src == src.Addr()
		}) > 0
	}
	return got{tcp22: has(unix.IPPROTO_TCP, 22), tcp23: has(unix.IPPROTO_TCP, 23), sctp5060: has(unix.IPPROTO_SCTP, 5060)}
}

// TestFieldCase_B14_OnlyTheExactValueOpensTheWholeAddress: an empty or unusable port list forwards nothing.
func TestFieldCase_B14_OnlyTheExactValueOpensTheWholeAddress(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web := p.topo.Web
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{sctpPort("sip", 5060)}})
	testenv.Absorb(t, web.NS, unix.IPPROTO_SCTP)
	pr := probes{p: p, from: p.topo.Ext, at: testenv.CaptureT(t, web.NS, web.If)}
	whole := func(value string) func() {
		return func() { p.edit("web", annotate(nat.AnnotationWholeIP, value)) }
	}
	ports := func(list ...corev1.ServicePort) func() {
		return func() { p.serve(web, exposure{name: "web", public: dual(11), ports: list}) }
	}
	none, all, sip := got{}, got{tcp22: true, tcp23: true, sctp5060: true}, got{sctp5060: true}
	for _, step := range []struct {
		name string
		do   func()
		want got
	}{
		{"SCTP only", func() {}, sip},
		{"no ports", ports(), none},
		{"unknown protocol", ports(corev1.ServicePort{Name: "odd", Port: 22, Protocol: "DCCP"}), none},
		{"ports again", ports(sctpPort("sip", 5060), tcpPort("ssh", 22)), got{tcp22: true, sctp5060: true}},
		{"whole", whole("true"), all},
		{"another spelling", whole("True"), got{tcp22: true, sctp5060: true}},
		{"absent", whole(""), got{tcp22: true, sctp5060: true}},
		{"whole again", whole("true"), all},
		{"no ports, not whole", ports(), none},
	} {
		step.do()
		for _, f := range testenv.Families() {
			require.Equal(t, step.want, pr.probe(t, public(f, 11)), "%s, %s", step.name, f)
			if step.want == all || step.want == none {
				listed := p.topo.NodeA.NS.Nft(t, "list", "map", "inet", "natplane", "port"+f.String()[3:])
				require.NotContains(t, listed, public(f, 11).String(), "%s leaves a port", step.name)
			}
		}
	}
}

// TestFieldCase_B15_UnlistedPortStaysClosedWhileTheEndpointMoves knocks on the unlisted port during the moves: only slices change.
func TestFieldCase_B15_UnlistedPortStaysClosedWhileTheEndpointMoves(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	ext, machines := p.topo.Ext, []*testenv.Machine{p.topo.DB, p.topo.Web}
	p.serve(p.topo.Web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	var captures []*testenv.Capture
	for _, m := range machines {
		overTCP().serveOn(t, m.NS, 22)
		overTCP().serveOn(t, m.NS, 23)
		captures = append(captures, testenv.CaptureT(t, m.NS, m.If))
	}
	stop := knock(t, ext, 23)
	for i := range 6 {
		to := machines[i%2]
		for _, f := range testenv.Families() {
			p.objects.editSlice(tenantNamespace+"web-"+sliceSuffix(f), func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Addresses = []string{to.Addr(f).String()}
			})
		}
		p.settle()
		for _, f := range testenv.Families() {
			conn := overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 11), 22))
			require.Equal(t, to.Addr(f), conn.PeerLocal.Addr())
		}
	}
	require.Greater(t, stop(), 20, "knocks")
	for _, c := range captures {
		c.Never(t, "unlisted port", func(pk testenv.Packet) bool { return pk.DstPort == 23 || pk.SrcPort == 23 })
	}
}

func sliceSuffix(f testenv.Family) string {
	return map[testenv.Family]string{testenv.IPv4: "ipv4", testenv.IPv6: "ipv6"}[f]
}

// knock sends SYNs to a port of 11 in both families, from ever new ports, until stop, which says how many.
func knock(t *testing.T, from *testenv.Host, port uint16) (stop func() int) {
	end, ended := make(chan struct{}), make(chan error, 1)
	n := 0
	go func() {
		for {
			for _, f := range testenv.Families() {
				src := netip.AddrPortFrom(from.Addr(f), uint16(10000+n%50000))
				syn := testenv.TCPSegment{Src: src, Dst: netip.AddrPortFrom(public(f, 11), port), Seq: 1, Flags: testenv.SYN}
				if err := testenv.SendIP(from.NS, syn.Packet()); err != nil {
					ended <- err
					return
				}
				n++
			}
			select {
			case <-end:
				ended <- nil
				return
			default:
			}
		}
	}()
	return func() int {
		close(end)
		require.NoError(t, <-ended)
		return n
	}
}
