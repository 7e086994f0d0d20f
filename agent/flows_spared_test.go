// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// undisturbed runs a change under conversations that do not pause: each of them has to stay the same flow, and to lose no packet.
func (s *stage) undisturbed(t testing.TB, conns map[string]*testenv.Conn, change func()) {
	t.Helper()
	keeping, busy := keep(t, s.topo.NodeA.NS, conns), newTalkers(t)
	for _, c := range conns {
		busy.talk(c, false)
	}
	change()
	s.settle()
	busy.stop()
	keeping.require(t)
	s.requireLegal(t, "node-a")
}

// through opens conversations with the machine through an address, both ways where it is the primary.
func (s *stage) through(t testing.TB, last int, primary bool) map[string]*testenv.Conn {
	t.Helper()
	conns := map[string]*testenv.Conn{}
	ext := s.topo.Ext
	for _, f := range testenv.Families() {
		suffix := fmt.Sprintf(" %s .%d", f, last)
		conns["TCP in"+suffix] = overTCP().connect(t, ext.NS, anywhere(), s.tcpIn.At(public(f, last)))
		conns["UDP in"+suffix] = overUDP().connect(t, ext.NS, anywhere(), s.udpIn.At(public(f, last)))
		if !primary {
			continue
		}
		for _, tr := range []struct {
			transport
			srv *testenv.Server
		}{{overTCP(), s.tcpOut}, {overUDP(), s.udpOut}} {
			conn := tr.connect(t, s.machine.NS, anywhere(), tr.srv.At(ext.Addr(f)))
			require.Equal(t, public(f, last), conn.SeenByPeer.Addr())
			conns[tr.name+" out"+suffix] = conn
		}
	}
	return conns
}

// TestFlowsOfAnotherAddressOfTheMachineStay when one of its addresses comes or goes, or another becomes the primary.
func TestFlowsOfAnotherAddressOfTheMachineStay(t *testing.T) {
	t.Parallel()
	second := exposure{name: "second", age: 1, public: dual(11), ports: []corev1.ServicePort{tcpPort("tcp", webPort), udpPort("udp", webPort)}}
	for name, change := range map[string]func(*stage){
		"one goes":  func(s *stage) { s.objects.deleteService(tenantNamespace + "second") },
		"one comes": func(s *stage) { s.serve(s.machine, exposure{name: "third", public: dual(20), whole: true}) },
		"other primary": func(s *stage) {
			s.edit("second", annotate(nat.AnnotationPrimary, "true"))
		},
		"comes and goes": func(s *stage) {
			s.objects.deleteService(tenantNamespace + "second")
			s.settle()
			s.serve(s.machine, second)
			s.objects.deleteService(tenantNamespace + "second")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			p.serve(p.topo.Web, exposure{name: "web", age: 30, public: dual(10), whole: true})
			p.serve(p.topo.Web, second)
			s := newStage(t, p, p.topo.Web)
			s.undisturbed(t, s.through(t, 10, true), func() { change(s) })
		})
	}
}

// TestFlowsStayWhenOneOfTwoPodsGoes: after a migration both pods of the machine have its address for a while.
func TestFlowsStayWhenOneOfTwoPodsGoes(t *testing.T) {
	t.Parallel()
	s := wholeStage(t)
	conns := s.through(t, 10, true)
	s.undisturbed(t, conns, func() {
		s.objects.pod(tenantNamespace+"web-target", "node-a", s.machine.Addrs...)
		s.settle()
		for _, f := range testenv.Families() {
			s.objects.editSlice(tenantNamespace+"web-"+sliceSuffix(f), func(slice *discoveryv1.EndpointSlice) {
				twin := *slice.Endpoints[0].DeepCopy()
				twin.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "tenant", Name: "web-target"}
				slice.Endpoints = append(slice.Endpoints, twin)
			})
		}
		s.settle()
		gone := nat.NewObjects()
		gone.Pods[key(tenantNamespace+"web")] = nil
		s.objects.change(gone)
		s.settle()
		for _, f := range testenv.Families() {
			s.objects.editSlice(tenantNamespace+"web-"+sliceSuffix(f), func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints = slice.Endpoints[1:]
			})
		}
	})
}

// TestFlowsThatAnotherProgramTranslatedStay: a masquerade and a port of the node, made by rules that are not ours, through every change.
func TestFlowsThatAnotherProgramTranslatedStay(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	p.topo.NodeA.NS.NftScript(t, somebodysNAT)
	s := newStage(t, p, p.topo.Web)
	ext, node := p.topo.Ext, p.topo.NodeA
	conns := map[string]*testenv.Conn{}
	for _, f := range testenv.Families() {
		for _, tr := range []struct {
			transport
			in, out *testenv.Server
		}{{overTCP(), s.tcpIn, s.tcpOut}, {overUDP(), s.udpIn, s.udpOut}} {
			suffix := " " + tr.name + " " + f.String()
			conns["masquerade"+suffix] = tr.connect(t, s.machine.NS, anywhere(), tr.out.At(ext.Addr(f)))
			require.Equal(t, node.Addr(f), conns["masquerade"+suffix].SeenByPeer.Addr())
			conns["pod"+suffix] = tr.connect(t, p.topo.Pod.NS, anywhere(), tr.out.At(ext.Addr(f)))
			conns["port"+suffix] = tr.connect(t, ext.NS, anywhere(), netip.AddrPortFrom(node.Addr(f), 30080))
			require.Equal(t, s.machine.Addr(f), conns["port"+suffix].PeerLocal.Addr())
		}
	}
	s.undisturbed(t, conns, func() {
		s.serve(s.machine, exposure{name: "web", public: dual(10), whole: true})
		s.serve(s.machine, exposure{name: "second", public: dual(11), whole: true})
		s.objects.deleteService(tenantNamespace + "web")
		s.settle()
		s.stop("node-a")
		s.start("node-a")
		s.settle()
		s.objects.deleteService(tenantNamespace + "second")
	})
}

// somebodysNAT is what a CNI and kube-proxy do, for the machine web too.
const somebodysNAT = `
table ip somebody {
	chain in { type nat hook prerouting priority dstnat; ip daddr 198.51.100.1 meta l4proto { tcp, udp } th dport 30080 dnat to 10.244.1.10:80; }
	chain out { type nat hook postrouting priority srcnat; oifname "up0" ip saddr 10.244.1.0/24 masquerade; }
}
table ip6 somebody {
	chain in { type nat hook prerouting priority dstnat; ip6 daddr 2001:db8:100::1 meta l4proto { tcp, udp } th dport 30080 dnat to [fd00:10:244:1::10]:80; }
	chain out { type nat hook postrouting priority srcnat; oifname "up0" ip6 saddr fd00:10:244:1::/64 masquerade; }
}`

// TestFieldCase_B52_RestartKeepsEveryFlow: five of each protocol through two addresses and the shard, and none is another afterwards.
func TestFieldCase_B52_RestartKeepsEveryFlow(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	p.objects.change(shard(200))
	p.serve(p.topo.Web, exposure{name: "web", age: 30, public: dual(10), whole: true})
	p.serve(p.topo.Web, exposure{name: "second", public: dual(11), whole: true})
	s := newStage(t, p, p.topo.Web)
	conns := map[string]*testenv.Conn{}
	for i := range 5 {
		for name, c := range s.through(t, 10, true) {
			conns[fmt.Sprint(name, " ", i)] = c
		}
		for name, c := range s.through(t, 11, false) {
			conns[fmt.Sprint(name, " ", i)] = c
		}
		for _, f := range testenv.Families() {
			suffix := fmt.Sprintf(" shard %s %d", f, i)
			conns["TCP"+suffix] = overTCP().connect(t, p.topo.Pod.NS, anywhere(), s.tcpOut.At(p.topo.Ext.Addr(f)))
			conns["UDP"+suffix] = overUDP().connect(t, p.topo.Pod.NS, anywhere(), s.udpOut.At(p.topo.Ext.Addr(f)))
			require.Equal(t, public(f, 200), conns["UDP"+suffix].SeenByPeer.Addr())
		}
	}
	seen := map[string]netip.AddrPort{}
	for name, c := range conns {
		seen[name] = c.SeenByPeer
	}
	s.undisturbed(t, conns, func() {
		for range 3 {
			s.stop("node-a")
			s.start("node-a")
			s.settle()
		}
	})
	for name, c := range conns {
		require.Equal(t, seen[name], c.SeenByPeer, name)
	}
	require.Zero(t, p.agents["node-a"].agent.AuditStats().Deleted)
}

// TestFieldCase_B10_FlowsOfASharedAddressStay when one of the two Services that share it goes, or another machine's.
func TestFieldCase_B10_FlowsOfASharedAddressStay(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	p.serve(p.topo.Web, exposure{name: "a-tcp", age: 2, public: dual(20), ports: []corev1.ServicePort{tcpPort("tcp", webPort)}})
	p.serve(p.topo.Web, exposure{name: "b-udp", age: 3, public: dual(20), ports: []corev1.ServicePort{udpPort("udp", webPort)}})
	p.serve(p.topo.DB, exposure{name: "db", public: dual(10), whole: true})
	s := newStage(t, p, p.topo.Web)
	all := s.through(t, 20, true)
	spared, cut := map[string]*testenv.Conn{}, map[string]*testenv.Conn{}
	for name, c := range all {
		if c.Remote.Addr() == public(testenv.FamilyOf(c.Remote.Addr()), 20) && c.Remote == s.udpIn.At(c.Remote.Addr()) && name[:3] == "UDP" {
			cut[name] = c
		} else {
			spared[name] = c
		}
	}
	require.Len(t, cut, 2)
	s.undisturbed(t, spared, func() {
		s.objects.deleteService(tenantNamespace + "b-udp")
		s.settle()
		s.objects.deleteService(tenantNamespace + "db")
	})
	for name, c := range cut {
		requireCut(t, name, c)
	}
}

// TestFieldCase_B4_FlowsStayWhenNothingAboutThemChanges: while an endpoint moves to another slice, and when nothing but an annotation or the order of addresses changes.
func TestFieldCase_B4_FlowsStayWhenNothingAboutThemChanges(t *testing.T) {
	t.Parallel()
	s := wholeStage(t)
	s.undisturbed(t, s.through(t, 10, true), func() {
		batch := nat.NewObjects()
		for _, f := range testenv.Families() {
			old := key(tenantNamespace + "web-" + sliceSuffix(f))
			moved := s.objects.current.Slices[old].DeepCopy()
			moved.Name += "-moved"
			batch.Slices[nat.Key{Namespace: old.Namespace, Name: moved.Name}] = moved
		}
		s.objects.change(batch)
		s.settle()
		s.objects.deleteSlices(tenantNamespace + "web")
		s.settle()
		for i := range 20 {
			s.objects.editService(tenantNamespace+"web", func(service *corev1.Service) {
				service.Annotations["touched"] = fmt.Sprint(i)
				in := service.Status.LoadBalancer.Ingress
				in[0], in[1] = in[1], in[0]
			})
		}
	})
}
