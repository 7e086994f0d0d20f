// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// onlyExt and onlyExt2 admit one client in both families.
func onlyExt() []string  { return []string{"198.51.100.7/32", "2001:db8:e::7/128"} }
func onlyExt2() []string { return []string{"198.51.100.8/32", "2001:db8:e::8/128"} }

// ranges changes what a Service admits.
func ranges(list ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = list }
}

// prefixes lists single addresses as ranges.
func prefixes(addrs ...netip.Addr) []string {
	var list []string
	for _, a := range addrs {
		list = append(list, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return list
}

// TestFieldCase_B96_SourceRangesHoldOnEveryPath: from outside, from both nodes, from neighbours and by hairpin.
func TestFieldCase_B96_SourceRangesHoldOnEveryPath(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := machinesPlane(t)
			web, db, pod, mail := p.topo.Web, p.topo.DB, p.topo.Pod, p.topo.Mail
			nodeA, nodeB, ext, ext2 := p.topo.NodeA, p.topo.NodeB, p.topo.Ext, p.topo.Ext2
			e.name, e.age, e.public, e.sources = "restricted", -1, dual(11), onlyExt2()
			p.serve(web, e)
			atWeb := testenv.CaptureT(t, web.NS, web.If)
			paths := func(f testenv.Family) []visit {
				return []visit{
					{name: "outside", from: ext.NS, sees: ext.Addr(f)},
					{name: "its node", from: nodeA.NS, sees: nodeA.Addr(f)},
					{name: "the other node", from: nodeB.NS, sees: nodeA.Addr(f)},
					{name: "neighbour", from: pod.NS, sees: pod.Addr(f)},
					{name: "machine", from: db.NS, sees: public(f, 20)},
					{name: "machine of the other node", from: mail.NS, sees: public(f, 30)},
					{name: "itself", from: web.NS, sees: public(f, 10)},
				}
			}
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				allowed := visit{name: "admitted", from: ext2.NS, to: public(f, 11), sees: ext2.Addr(f), at: web.Addr(f)}
				allowed.check(t)
				require.NoError(t, atWeb.Reset())
				closed := paths(f)
				for i := range closed {
					closed[i].to = public(f, 11)
				}
				allRefused(t, closed...)
				atWeb.Never(t, "not admitted", func(pk testenv.Packet) bool { return pk.Dir == testenv.In && pk.DstPort == appPort })
				allowed.check(t)
			})
			// The client of a local machine is its own address: nothing has translated it yet.
			var all []netip.Addr
			for _, f := range testenv.Families() {
				all = append(all, ext.Addr(f), nodeA.Addr(f), nodeB.Addr(f), pod.Addr(f), db.Addr(f), web.Addr(f), public(f, 30))
			}
			p.edit("restricted", ranges(prefixes(all...)...))
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				for _, v := range paths(f) {
					v.to, v.at = public(f, 11), web.Addr(f)
					v.check(t)
				}
				visit{name: "no longer admitted", from: ext2.NS, to: public(f, 11)}.refused(t)
			})
		})
	}
}

// admission says which of both clients reach a machine, in each family.
type admission struct{ ext, ext2 bool }

// admitted knocks from both clients with TCP, UDP and echo. All of them are admitted or none.
func (p *plane) admitted(t *testing.T, at *testenv.Capture, dst netip.Addr) admission {
	t.Helper()
	require.NoError(t, at.Reset())
	f := testenv.FamilyOf(dst)
	knocks := func(from *testenv.Host) bool {
		src, to := netip.AddrPortFrom(from.Addr(f), 40100), netip.AddrPortFrom(dst, appPort)
		send(t, from.NS, testenv.TCPSegment{Src: src, Dst: to, Seq: 1, Flags: testenv.SYN}.Packet())
		send(t, from.NS, testenv.UDPDatagram{Src: src, Dst: to}.Packet())
		send(t, from.NS, testenv.Echo{Src: src.Addr(), Dst: dst, ID: 41, Seq: 1}.Packet())
		require.NoError(t, at.Flush())
		n := map[uint8]int{}
		for _, pk := range at.Packets() {
			if pk.Dir == testenv.In && pk.Src == src.Addr() {
				n[pk.Proto]++
			}
		}
		got := []bool{n[unix.IPPROTO_TCP] > 0, n[unix.IPPROTO_UDP] > 0, n[icmpOf(dst)] > 0}
		require.Equal(t, got[0], got[1], "TCP and UDP from %s", from.Name)
		require.Equal(t, got[0], got[2], "TCP and echo from %s", from.Name)
		return got[0]
	}
	return admission{ext: knocks(p.topo.Ext), ext2: knocks(p.topo.Ext2)}
}

// TestSourceRangesAreExact: ext is the last address of a /29 and of a /125, and ext2 the first after them.
func TestSourceRangesAreExact(t *testing.T) {
	t.Parallel()
	both, none := admission{true, true}, admission{}
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			e.name, e.public = "web", dual(11)
			p.serve(p.topo.Web, e)
			answer(t, p.topo.Web.NS)
			at := testenv.CaptureT(t, p.topo.Web.NS, p.topo.Web.If)
			for _, tc := range []struct {
				name         string
				ranges       []string
				want4, want6 admission
			}{
				{"no ranges", nil, both, both},
				{"last address of a range", []string{"198.51.100.0/29", "2001:db8:e::/125"}, admission{ext: true}, admission{ext: true}},
				{"first address of a range", []string{"198.51.100.8/29", "2001:db8:e::8/125"}, admission{ext2: true}, admission{ext2: true}},
				{"adjacent", []string{"198.51.100.8/29", "198.51.100.0/29", "2001:db8:e::/125", "2001:db8:e::8/125"}, both, both},
				{"adjacent single addresses", append(onlyExt2(), onlyExt()...), both, both},
				{"overlapping", []string{
					"198.51.100.7/32", "198.51.100.0/24", "198.51.100.6/31", "2001:db8:e::/64", "2001:db8:e::7/128", "2001:db8:e::/48",
				}, both, both},
				{"twice", append(onlyExt(), onlyExt()...), admission{ext: true}, admission{ext: true}},
				{"IPv4 only closes IPv6", []string{"198.51.100.7/32"}, admission{ext: true}, none},
				{"IPv6 only closes IPv4", []string{"2001:db8:e::8/128"}, none, admission{ext2: true}},
				{"everybody in IPv4", []string{"0.0.0.0/0"}, both, none},
				{"everybody in IPv6", []string{"::/0"}, none, both},
				{"everybody in halves", []string{"0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"}, both, both},
				{"host bits set", []string{"198.51.100.7/29"}, admission{ext: true}, none},
				{"not a range", []string{"198.51.100.7"}, none, none},
				{"one is not a range", []string{"everybody", "198.51.100.7/32"}, admission{ext: true}, none},
				{"no ranges again", nil, both, both},
			} {
				p.edit("web", ranges(tc.ranges...))
				require.Equal(t, tc.want4, p.admitted(t, at, public(testenv.IPv4, 11)), "%s, IPv4", tc.name)
				require.Equal(t, tc.want6, p.admitted(t, at, public(testenv.IPv6, 11)), "%s, IPv6", tc.name)
			}
		})
	}
}

// TestSourceRangesBelongToTheirService: two Services share an address and admit different clients.
func TestSourceRangesBelongToTheirService(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, db, ext, ext2 := p.topo.Web, p.topo.DB, p.topo.Ext, p.topo.Ext2
	list := func(port int32) []corev1.ServicePort {
		return []corev1.ServicePort{tcpPort("tcp", port), udpPort("udp", port)}
	}
	targets := map[string]int32{"tcp": appPort, "udp": appPort}
	p.serve(web, exposure{name: "web", age: 2, public: dual(11), ports: list(80), targets: targets, sources: onlyExt()})
	p.serve(db, exposure{name: "db", age: 1, public: dual(11), ports: list(81), targets: targets, sources: onlyExt2()})
	p.serve(db, exposure{name: "open", public: dual(11), ports: list(82), targets: targets})
	answer(t, web.NS)
	answer(t, db.NS)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		shared := public(f, 11)
		visit{name: "ext to web", from: ext.NS, to: shared, port: 80, sees: ext.Addr(f), at: web.Addr(f)}.check(t)
		visit{name: "ext2 to web", from: ext2.NS, to: shared, port: 80}.refused(t)
		visit{name: "ext to db", from: ext.NS, to: shared, port: 81}.refused(t)
		visit{name: "ext2 to db", from: ext2.NS, to: shared, port: 81, sees: ext2.Addr(f), at: db.Addr(f)}.check(t)
		visit{name: "ext to the open one", from: ext.NS, to: shared, port: 82, sees: ext.Addr(f), at: db.Addr(f)}.check(t)
		visit{name: "ext2 to the open one", from: ext2.NS, to: shared, port: 82, sees: ext2.Addr(f), at: db.Addr(f)}.check(t)
	})
}

// TestNarrowerSourceRangesCutOpenConnections that they no longer admit, and no other.
func TestNarrowerSourceRangesCutOpenConnections(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			e.name, e.public, e.sources = "web", dual(11), append(onlyExt(), onlyExt2()...)
			p.serve(p.topo.Web, e)
			answer(t, p.topo.Web.NS)
			answer(t, p.topo.Ext.NS)
			var cut, kept []*testenv.Conn
			for _, f := range testenv.Families() {
				for _, tr := range []transport{overTCP(), overUDP()} {
					to := netip.AddrPortFrom(public(f, 11), appPort)
					cut = append(cut, tr.connect(t, p.topo.Ext.NS, anywhere(), to))
					kept = append(kept, tr.connect(t, p.topo.Ext2.NS, anywhere(), to),
						// The machine's own connection, to the client that may not dial it.
						tr.connect(t, p.topo.Web.NS, anywhere(), netip.AddrPortFrom(p.topo.Ext.Addr(f), appPort)))
				}
			}
			p.edit("web", ranges(onlyExt2()...))
			for _, conn := range cut {
				conn.SetTimeout(soon)
				testenv.Unreachable(t, conn.Remote.String(), conn.RoundTrip)
			}
			for _, conn := range kept {
				require.NoError(t, conn.RoundTrip())
			}
		})
	}
}

// TestSourceRangesLetErrorsPass: an ICMP error about an admitted connection comes from a router, which is no client.
func TestSourceRangesLetErrorsPass(t *testing.T) {
	t.Parallel()
	for name, e := range methods() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			web, ext, ext2 := p.topo.Web, p.topo.Ext, p.topo.Ext2
			e.name, e.public, e.sources = "web", dual(11), onlyExt2()
			p.serve(web, e)
			answer(t, web.NS)
			atWeb := testenv.CaptureT(t, web.NS, web.If)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				conn := overUDP().connect(t, ext2.NS, anywhere(), netip.AddrPortFrom(public(f, 11), appPort))
				sendError := func(to netip.AddrPort) {
					answer := testenv.UDPDatagram{Src: conn.Remote, Dst: to, Payload: make([]byte, 1000)}
					tooBig, err := testenv.PacketTooBig(ext.Addr(f), 1400, answer.Packet())
					require.NoError(t, err)
					send(t, ext.NS, tooBig.Packet())
				}
				sendError(netip.AddrPortFrom(ext2.Addr(f), 9)) // about no connection
				sendError(conn.Local)
				isError := func(pk testenv.Packet) bool {
					_, quotes := pk.Quoted()
					return pk.Dir == testenv.In && pk.Src == ext.Addr(f) && quotes
				}
				got, _ := arrival(t, atWeb, "error", isError).Quoted()
				require.Equal(t, netip.AddrPortFrom(web.Addr(f), appPort), netip.AddrPortFrom(got.Src, got.SrcPort))
				require.Equal(t, conn.Local, netip.AddrPortFrom(got.Dst, got.DstPort))
				require.NoError(t, atWeb.Flush())
				require.Equal(t, 1, atWeb.Count(isError), "errors")
			})
		})
	}
}
