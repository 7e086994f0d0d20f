// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// follows sends the address of the Service web to other backends, one for each family.
func (p *plane) follows(m *testenv.Machine, backends ...netip.Addr) {
	e := exposure{name: tenantNamespace + "web", public: dual(10), whole: true, node: m.Node.Name, backends: backends}
	batch := e.objects()
	batch.Services = nil
	p.objects.change(batch)
}

// requireArrivesAt shows that what goes on without a pause, and what is new, reaches the machine that has the address now.
func (c *conversations) requireArrivesAt(t testing.TB, m *testenv.Machine, at wire) {
	t.Helper()
	arrival(t, at.Capture, "datagram at "+m.Name, datagrams(netip.AddrPortFrom(m.Addr(c.f), onewayPort), senderPort))
	require.NoError(t, c.ping())
	arrival(t, at.Capture, "ping at "+m.Name, echoes(m.Addr(c.f), echoID))
	// The dialling port of the old conversation is no hindrance.
	old := c.in["UDP in"]
	conn := overTCP().connect(t, c.topo.Ext.NS, anywhere(), c.tcpIn.At(c.public))
	require.Equal(t, m.Addr(c.f), conn.PeerLocal.Addr())
	old.SetTimeout(patience)
	require.NoError(t, old.RoundTrip())
	require.Equal(t, m.Addr(c.f), old.PeerLocal.Addr())
}

// TestFieldCase_B49_AddressMovesToAnotherMachine: what ran to the first machine runs to the second, and nothing reaches the first.
func TestFieldCase_B49_AddressMovesToAnotherMachine(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(*stage){
		"in one update": func(s *stage) { s.follows(s.topo.DB, s.topo.DB.Addrs...) },
		"with a gap": func(s *stage) {
			s.objects.deleteSlices(tenantNamespace + "web")
			s.settle()
			s.follows(s.topo.DB, s.topo.DB.Addrs...)
		},
		"while the agent was down": func(s *stage) {
			s.stop("node-a")
			s.follows(s.topo.DB, s.topo.DB.Addrs...)
			s.start("node-a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := wholeStage(t, testenv.WithRouterPodRoutes(false))
			both := s.converseBoth(t, 10)
			db := s.topo.DB
			overTCP().serveOn(t, db.NS, webPort)
			overUDP().serveOn(t, db.NS, webPort)
			swallow(t, db.NS, onewayPort)
			atDB := s.wire(t, db)

			move(s)
			s.settle()
			for _, c := range both {
				requireCut(t, "TCP in", c.in["TCP in"])
				c.requireArrivesAt(t, db, atDB)
				s.at.requireSilence(t, c.oneWay)
				c.requireOutCut(t)
				c.requireNoFlow(t, s.machine)
			}
			s.requireLegal(t, "node-a")
		})
	}
}

// TestFieldCase_B9_BackendChanges: the machine comes back with another address, and the Service is not touched.
func TestFieldCase_B9_BackendChanges(t *testing.T) {
	t.Parallel()
	s := wholeStage(t, testenv.WithRouterPodRoutes(false))
	both := s.converseBoth(t, 10)
	again := []netip.Addr{netip.MustParseAddr("10.244.1.15"), netip.MustParseAddr("fd00:10:244:1::15")}
	m, err := s.topo.AddMachine(s.topo.NodeA, "again", again...)
	require.NoError(t, err)
	s.objects.pod(tenantNamespace+"again", "node-a", again...)
	overTCP().serveOn(t, m.NS, webPort)
	overUDP().serveOn(t, m.NS, webPort)
	swallow(t, m.NS, onewayPort)
	atAgain := s.wire(t, m)

	s.follows(m, again...)
	s.settle()
	for _, c := range both {
		requireCut(t, "TCP in", c.in["TCP in"])
		c.requireArrivesAt(t, m, atAgain)
		s.at.requireSilence(t, c.oneWay)
		c.requireOutCut(t)
		c.requireNoFlow(t, s.machine)
		require.Equal(t, c.public, overTCP().leavesWith(t, m.NS, s.tcpOut.At(s.topo.Ext.Addr(c.f))))
	}
	table := s.topo.NodeA.NS.Nft(t, "list", "table", "inet", "natplane")
	for _, old := range s.machine.Addrs {
		require.NotRegexp(t, `\b`+old.String()+`\b`, table)
	}
}

// TestFieldCase_B43_OneWayDatagramsEndWithTheLastEndpoint, which no port list keeps when it is gone.
func TestFieldCase_B43_OneWayDatagramsEndWithTheLastEndpoint(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]exposure{
		"WholeIP":  {name: "web", public: dual(10), whole: true},
		"PortList": {name: "web", public: dual(10), ports: []corev1.ServicePort{udpPort("statsd", onewayPort)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			p.serve(p.topo.Web, e)
			s := newStage(t, p, p.topo.Web)
			var senders []*sender
			for _, f := range testenv.Families() {
				senders = append(senders, s.oneway(t, f, public(f, 10), onewayPort))
			}
			p.objects.deleteSlices(tenantNamespace + "web")
			p.settle()
			for _, sender := range senders {
				s.at.requireSilence(t, sender)
				require.Empty(t, translated(through(t, p.topo.NodeA.NS, sender.to.Addr())))
			}
		})
	}
}

// TestFieldCase_B54_RemovedAndRetargetedPortsEndTheirSessions and no others (B53), also those that never pause.
func TestFieldCase_B54_RemovedAndRetargetedPortsEndTheirSessions(t *testing.T) {
	t.Parallel()
	ports := []corev1.ServicePort{tcpPort("kept", webPort), udpPort("kept-udp", webPort), tcpPort("changed", 443), udpPort("busy", onewayPort)}
	before := exposure{name: "web", public: dual(10), ports: ports, icmp: true, targets: map[string]int32{"changed": 8443}}
	removed, retargeted := before, before
	removed.ports = ports[:2]
	retargeted.targets = map[string]int32{"changed": 9443, "busy": 9125}
	// The same in the other direction: what a whole address forwards to the port that was dialled is not what the list says.
	whole := exposure{name: "web", public: dual(10), whole: true}
	for name, after := range map[string]exposure{"removed": removed, "retargeted": retargeted, "whole address": whole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			p.serve(p.topo.Web, before)
			s := newStage(t, p, p.topo.Web)
			changed := overTCP().serveOn(t, s.machine.NS, 8443)
			node, ext := p.topo.NodeA.NS, p.topo.Ext
			spared, cut := map[string]*testenv.Conn{}, map[string]*testenv.Conn{}
			var senders []*sender
			for _, f := range testenv.Families() {
				addr, fam := public(f, 10), " "+f.String()
				spared["TCP"+fam] = overTCP().connect(t, ext.NS, anywhere(), s.tcpIn.At(addr))
				spared["UDP"+fam] = overUDP().connect(t, ext.NS, anywhere(), s.udpIn.At(addr))
				spared["TCP out"+fam] = overTCP().connect(t, s.machine.NS, anywhere(), s.tcpOut.At(ext.Addr(f)))
				spared["UDP out"+fam] = overUDP().connect(t, s.machine.NS, anywhere(), s.udpOut.At(ext.Addr(f)))
				cut["TCP"+fam] = overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(addr, 443))
				require.Equal(t, changed.Addr().Port(), cut["TCP"+fam].PeerLocal.Port())
				senders = append(senders, s.oneway(t, f, addr, onewayPort))
			}
			keeping, busy := keep(t, node, spared), newTalkers(t)
			for _, c := range spared {
				busy.talk(c, false)
			}
			p.serve(p.topo.Web, after)
			busy.stop()
			keeping.require(t)
			for what, c := range cut {
				requireCut(t, what, c)
			}
			for _, sender := range senders {
				if name == "whole address" {
					continue // to the same port as before
				}
				s.at.requireSilentPort(t, sender, onewayPort)
			}
			p.requireLegal(t, "node-a")
		})
	}
}

// TestMethodChangeEndsWhatTheListDoesNotAdmit: from the whole address to a list.
func TestMethodChangeEndsWhatTheListDoesNotAdmit(t *testing.T) {
	t.Parallel()
	s := wholeStage(t)
	both := s.converseBoth(t, 10)
	other := overTCP().serveOn(t, s.machine.NS, 8080)
	spared, cut := map[string]*testenv.Conn{}, map[string]*testenv.Conn{}
	for _, c := range both {
		fam := " " + c.f.String()
		cut["TCP 8080"+fam] = overTCP().connect(t, s.topo.Ext.NS, anywhere(), other.At(c.public))
		cut["UDP"+fam] = c.in["UDP in"]
		spared["TCP"+fam] = c.in["TCP in"]
		for name, conn := range c.out {
			spared[name+fam] = conn
		}
	}
	keeping := keep(t, s.topo.NodeA.NS, spared)
	s.serve(s.machine, exposure{name: "web", public: dual(10), ports: []corev1.ServicePort{tcpPort("web", webPort)}})
	keeping.require(t)
	for name, conn := range cut {
		requireCut(t, name, conn)
	}
	for _, c := range both {
		testenv.Unreachable(t, "ping", c.ping)
		s.at.requireSilence(t, c.oneWay)
		require.NoError(t, s.outside.Reset())
		arrival(t, s.outside, "datagram out", from(c.public, onewayOut))
	}
	s.requireLegal(t, "node-a")
}

// TestNarrowedSourceRangesEndTheSessionsOfOthers in both methods; those of admitted clients and the machine's own go on.
func TestNarrowedSourceRangesEndTheSessionsOfOthers(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]exposure{
		"WholeIP":  {name: "web", public: dual(10), whole: true},
		"PortList": {name: "web", public: dual(10), ports: []corev1.ServicePort{tcpPort("tcp", webPort), udpPort("udp", webPort), udpPort("busy", onewayPort)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			p.serve(p.topo.Web, e)
			s := newStage(t, p, p.topo.Web)
			ext, ext2 := p.topo.Ext, p.topo.Ext2
			spared, cut := map[string]*testenv.Conn{}, map[string]*testenv.Conn{}
			var senders []*sender
			for _, f := range testenv.Families() {
				addr, fam := public(f, 10), " "+f.String()
				cut["TCP"+fam] = overTCP().connect(t, ext.NS, anywhere(), s.tcpIn.At(addr))
				cut["UDP"+fam] = overUDP().connect(t, ext.NS, anywhere(), s.udpIn.At(addr))
				spared["TCP"+fam] = overTCP().connect(t, ext2.NS, anywhere(), s.tcpIn.At(addr))
				spared["UDP"+fam] = overUDP().connect(t, ext2.NS, anywhere(), s.udpIn.At(addr))
				spared["TCP out"+fam] = overTCP().connect(t, s.machine.NS, anywhere(), s.tcpOut.At(ext.Addr(f)))
				senders = append(senders, s.oneway(t, f, addr, onewayPort))
			}
			keeping := keep(t, p.topo.NodeA.NS, spared)
			e.sources = []string{ext2.Addr4().String() + "/32", ext2.Addr6().String() + "/128"}
			p.serve(p.topo.Web, e)
			keeping.require(t)
			for what, c := range cut {
				requireCut(t, what, c)
			}
			for _, sender := range senders {
				s.at.requireSilence(t, sender)
			}
			p.requireLegal(t, "node-a")
		})
	}
}

// oneway starts a sender that nobody answers, and waits for it to reach the machine.
func (s *stage) oneway(t testing.TB, f testenv.Family, dialled netip.Addr, port uint16) *sender {
	t.Helper()
	source := netip.AddrPortFrom(s.topo.Ext.Addr(f), senderPort)
	sender := sendAlways(t, s.topo.Ext.NS, source, netip.AddrPortFrom(dialled, port))
	arrival(t, s.at.Capture, "datagram in", datagrams(netip.AddrPortFrom(s.machine.Addr(f), onewayPort), senderPort))
	return sender
}
