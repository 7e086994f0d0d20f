// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// The ports of conversations.
const (
	onewayPort  = 8125 // of the machine, which swallows
	onewayOut   = 4001 // of the client outside, which swallows
	senderPort  = 5000 // that datagrams in come from
	machinePort = 4000 // that datagrams out come from
	echoID      = 77
)

// stage has servers for conversations with a machine in both directions and both families.
type stage struct {
	*plane
	machine                      *testenv.Machine
	tcpIn, udpIn, tcpOut, udpOut *testenv.Server
	at                           wire
	outside                      *testenv.Capture
}

// newStage prepares a machine. Nothing that the node sends back to the router comes again: a loop of every datagram would only cost time.
func newStage(t testing.TB, p *plane, m *testenv.Machine) *stage {
	t.Helper()
	p.topo.Router.NS.NftScript(t, fmt.Sprintf(`
table inet noloops {
	chain forward {
		type filter hook forward priority 0;
		iifname %[1]q ip daddr 203.0.113.0/24 drop
		iifname %[1]q ip6 daddr 2001:db8:203::/64 drop
	}
}`, p.topo.NodeA.Name))
	swallow(t, m.NS, onewayPort)
	swallow(t, p.topo.Ext.NS, onewayOut)
	return &stage{
		plane: p, machine: m,
		tcpIn: overTCP().serveOn(t, m.NS, webPort), udpIn: overUDP().serveOn(t, m.NS, webPort),
		tcpOut: overTCP().serveOn(t, p.topo.Ext.NS, 0), udpOut: overUDP().serveOn(t, p.topo.Ext.NS, 0),
		at: p.wire(t, m), outside: testenv.CaptureT(t, p.topo.Ext.NS, clientIf),
	}
}

// conversations are what an address carries in one family.
type conversations struct {
	*stage
	f       testenv.Family
	public  netip.Addr
	in, out map[string]*testenv.Conn
	// Two that nobody answers and that never pause.
	oneWay, oneWayBack *sender
}

// converse opens one conversation of each kind through a whole address, which is the machine's primary.
func (s *stage) converse(t testing.TB, f testenv.Family, public netip.Addr) *conversations {
	t.Helper()
	ext := s.topo.Ext
	c := s.converseOut(t, f, public)
	c.in = map[string]*testenv.Conn{
		"TCP in": overTCP().connect(t, ext.NS, anywhere(), s.tcpIn.At(public)),
		"UDP in": overUDP().connect(t, ext.NS, anywhere(), s.udpIn.At(public)),
	}
	require.NoError(t, c.ping())
	c.oneWay = s.oneway(t, f, public, onewayPort)
	return c
}

// converseOut opens one conversation of each kind that leaves with the address.
func (s *stage) converseOut(t testing.TB, f testenv.Family, public netip.Addr) *conversations {
	t.Helper()
	ext, m := s.topo.Ext, s.machine
	c := &conversations{stage: s, f: f, public: public}
	c.out = map[string]*testenv.Conn{
		"TCP out": overTCP().connect(t, m.NS, anywhere(), s.tcpOut.At(ext.Addr(f))),
		"UDP out": overUDP().connect(t, m.NS, anywhere(), s.udpOut.At(ext.Addr(f))),
	}
	for name, conn := range c.out {
		require.Equal(t, public, conn.SeenByPeer.Addr(), name)
	}
	c.oneWayBack = sendAlways(t, m.NS, netip.AddrPortFrom(m.Addr(f), machinePort), netip.AddrPortFrom(ext.Addr(f), onewayOut))
	arrival(t, s.outside, "datagram out", from(public, onewayOut))
	return c
}

func (s *stage) converseBoth(t testing.TB, last int) []*conversations {
	t.Helper()
	var list []*conversations
	for _, f := range testenv.Families() {
		list = append(list, s.converse(t, f, public(f, last)))
	}
	return list
}

// ping sends an echo request of one running ping.
func (c *conversations) ping() error {
	_, err := testenv.Echo{Dst: c.public, ID: echoID, Seq: 1, Payload: []byte("ping")}.Ping(c.topo.Ext.NS, cutWait)
	return err
}

// from matches what arrives from an address at a port.
func from(src netip.Addr, port uint16) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool { return p.Dir == testenv.In && p.Src == src && p.DstPort == port }
}

// requireInCut shows that nothing of what came in reaches the machine any more.
func (c *conversations) requireInCut(t testing.TB) {
	t.Helper()
	for name, conn := range c.in {
		requireCut(t, name, conn)
	}
	testenv.Unreachable(t, "ping", c.ping)
	c.at.requireSilence(t, c.oneWay)
}

// requireOutCut shows that nothing leaves with the address any more. Datagrams may leave with another.
func (c *conversations) requireOutCut(t testing.TB) {
	t.Helper()
	requireCut(t, "TCP out", c.out["TCP out"])
	udp := c.out["UDP out"]
	udp.SetTimeout(cutWait)
	if err := udp.RoundTrip(); err == nil {
		require.NotEqual(t, c.public, udp.SeenByPeer.Addr(), "UDP out: goes on")
	} else {
		require.True(t, isCut(err), "UDP out: %v", err)
	}
	require.NoError(t, c.outside.Reset())
	c.oneWayBack.goesOn(t)
	c.outside.Never(t, "packet from "+c.public.String(), func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Src == c.public && p.DstPort == onewayOut
	})
}

// requireNoFlow shows that no flow of the node connects the address with the machine.
func (c *conversations) requireNoFlow(t testing.TB, m *testenv.Machine) {
	t.Helper()
	for _, f := range through(t, c.topo.NodeA.NS, c.public) {
		require.NotEqual(t, m.Addr(c.f), f.Orig.Src, "%v", f)
		require.NotEqual(t, m.Addr(c.f), f.Reply.Src, "%v", f)
	}
}

// wholeStage has the machine web with a whole address, 10.
func wholeStage(t testing.TB, topology ...testenv.Option) *stage {
	t.Helper()
	p := tenantPlane(t, topology...)
	p.serve(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	return newStage(t, p, p.topo.Web)
}

// TestFieldCase_B48_RemovedAddressEndsItsSessions: whatever takes the address away.
func TestFieldCase_B48_RemovedAddressEndsItsSessions(t *testing.T) {
	t.Parallel()
	edited := func(edit func(*corev1.Service)) func(*plane) {
		return func(p *plane) { p.objects.editService(tenantNamespace+"web", edit) }
	}
	for name, remove := range map[string]func(*plane){
		"label removed":     edited(func(s *corev1.Service) { delete(s.Labels, nat.LabelProxyName) }),
		"another's label":   edited(func(s *corev1.Service) { s.Labels[nat.LabelProxyName] = "somebody" }),
		"type changed":      edited(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP }),
		"status emptied":    edited(func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil }),
		"Service deleted":   func(p *plane) { p.objects.deleteService(tenantNamespace + "web") },
		"endpoints removed": func(p *plane) { p.objects.deleteSlices(tenantNamespace + "web") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// Without a way back for private addresses nothing answers what leaves with one.
			s := wholeStage(t, testenv.WithRouterPodRoutes(false))
			both := s.converseBoth(t, 10)
			remove(s.plane)
			s.settle()
			for _, c := range both {
				c.requireInCut(t)
				c.requireOutCut(t)
				c.requireNoFlow(t, s.machine)
			}
			s.requireLegal(t, "node-a")
		})
	}
}

// TestFlowsEndWhenTheServiceWentWhileTheAgentWasDown: an agent that starts looks at every flow.
func TestFlowsEndWhenTheServiceWentWhileTheAgentWasDown(t *testing.T) {
	t.Parallel()
	s := wholeStage(t, testenv.WithRouterPodRoutes(false))
	both := s.converseBoth(t, 10)
	s.stop("node-a")
	s.objects.deleteService(tenantNamespace + "web")
	for _, c := range both {
		for name, conn := range c.in {
			requireOpen(t, name+" without an agent", conn)
		}
	}
	s.start("node-a")
	s.settle()
	for _, c := range both {
		c.requireInCut(t)
		c.requireOutCut(t)
		c.requireNoFlow(t, s.machine)
	}
}

// illegible is a table of flows that cannot be read.
type illegible struct{ conntrack.Table }

func (illegible) Dump(context.Context, conntrack.Query, func(conntrack.Flow)) error {
	return errors.New("illegible")
}

// TestFlowsEndWhenTheAgentDiedBeforeItsAudit: the next one finds in the table which address went, and which machine it was.
func TestFlowsEndWhenTheAgentDiedBeforeItsAudit(t *testing.T) {
	t.Parallel()
	s := wholeStage(t, testenv.WithRouterPodRoutes(false))
	both := s.converseBoth(t, 10)
	s.stop("node-a")
	s.start("node-a", func(o *agent.Options) {
		agent.WrapFlows(o, func(t conntrack.Table) conntrack.Table { return illegible{t} })
	})
	remembered := func() string { return s.node("node-a").NS.Nft(t, "list", "set", "inet", "natplane", "parted4") }
	s.objects.deleteService(tenantNamespace + "web")
	testenv.Eventually(t, patience, "the address goes and is remembered", func() error {
		if set := remembered(); !strings.Contains(set, public(testenv.IPv4, 10).String()+" . "+s.machine.Addr4().String()) {
			return errors.New(set)
		}
		return nil
	})
	for _, c := range both {
		for name, conn := range c.in {
			requireOpen(t, name+" after an agent that saw no flow", conn)
		}
	}
	s.stop("node-a")
	s.start("node-a")
	s.settle()
	for _, c := range both {
		c.requireInCut(t)
		c.requireOutCut(t)
		c.requireNoFlow(t, s.machine)
	}
	testenv.Eventually(t, patience, "the address is forgotten", func() error {
		if set := remembered(); strings.Contains(set, "elements") {
			return errors.New(set)
		}
		return nil
	})
}
