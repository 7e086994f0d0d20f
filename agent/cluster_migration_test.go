// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// migration is one machine with its Service, and what talks to it.
type migration struct {
	*clusterPlane
	name     string
	last     int // of its public addresses
	machine  *roamer
	tcp, udp *testenv.Server // of the client outside
	conns    map[string]*testenv.Conn
}

// newMigration has a machine on node-a that talks to the outside in both directions.
func (p *clusterPlane) newMigration(t *testing.T, name string, last int) *migration {
	t.Helper()
	q := *p
	q.t = t
	m := &migration{clusterPlane: &q, name: name, last: last, conns: map[string]*testenv.Conn{}}
	m.machine = newRoamer(t, q.topo, name, netip.MustParseAddr(fmt.Sprintf("10.244.9.%d", last)), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:9::%d", last)))
	m.pod(name+"-source", name, "node-a", m.machine.Addrs...)
	m.expose(name, last)
	m.announce(last, m.topo.NodeA)
	m.translates("node-a", last, &m.machine.Host)
	m.translates("node-b", last, nil)
	m.says(tenantA, name, nat.ReasonProgrammed, m.machine.Addr4().String(), m.machine.Addr6().String())
	answer(t, m.machine.NS)
	m.tcp, m.udp = overTCP().serveOn(t, m.topo.Ext.NS, 0), overUDP().serveOn(t, m.topo.Ext.NS, 0)
	m.open()
	return m
}

// open starts a conversation of each kind and keeps it.
func (m *migration) open() {
	m.t.Helper()
	ext := m.topo.Ext
	for _, f := range testenv.Families() {
		for _, tr := range []struct {
			transport
			out *testenv.Server
		}{{overTCP(), m.tcp}, {overUDP(), m.udp}} {
			m.conns[tr.name+" in "+f.String()] = tr.connect(m.t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, m.last), appPort))
			out := tr.connect(m.t, m.machine.NS, anywhere(), tr.out.At(ext.Addr(f)))
			require.Equal(m.t, public(f, m.last), out.SeenByPeer.Addr())
			m.conns[tr.name+" out "+f.String()] = out
		}
	}
}

// reachable shows that new connections in both directions work, each with the right source.
func (m *migration) reachable(t *testing.T) {
	t.Helper()
	ext := m.topo.Ext
	for _, f := range testenv.Families() {
		visit{name: "in", from: ext.NS, to: public(f, m.last), sees: ext.Addr(f), at: m.machine.Addr(f)}.check(t)
		require.Equal(t, public(f, m.last), overTCP().leavesWith(t, m.machine.NS, m.tcp.At(ext.Addr(f))))
		require.Equal(t, public(f, m.last), overUDP().leavesWith(t, m.machine.NS, m.udp.At(ext.Addr(f))))
	}
}

// goOn shows that the conversations are the same ones still.
func (m *migration) goOn(t *testing.T) {
	t.Helper()
	for name, c := range m.conns {
		seen := c.SeenByPeer
		requireOpen(t, name, c)
		require.Equal(t, seen, c.SeenByPeer, name)
	}
}

// endpoints waits until the slices of the Service say of each Pod whether it is ready, in both families.
func (m *migration) endpoints(ready map[string]bool) {
	m.t.Helper()
	testenv.Eventually(m.t, controllersTake, "endpoints of "+m.name, func() error {
		list, err := m.slicesOf(m.name)
		if err != nil {
			return err
		}
		found := 0
		for _, s := range list {
			for _, e := range s.Endpoints {
				found++
				if want, listed := ready[e.TargetRef.Name]; !listed || *e.Conditions.Ready != want {
					return fmt.Errorf("%s: %v", e.TargetRef.Name, *e.Conditions.Ready)
				}
			}
		}
		if found != 2*len(ready) {
			return fmt.Errorf("%d endpoints", found)
		}
		return nil
	})
}

// keepsTranslating shows that both nodes have seen the endpoints as they are and still translate: what has no effect has no end to wait for.
func (m *migration) keepsTranslating(nodes ...string) {
	m.t.Helper()
	remains(m.t, 500*time.Millisecond, func() error {
		for _, node := range nodes {
			for _, f := range testenv.Families() {
				list, err := m.agents[node].backends(m.t.Context(), public(f, m.last))
				if err != nil {
					return err
				}
				if len(list) != 1 || list[0] != m.machine.Addr(f) {
					return fmt.Errorf("%s translates %s to %v", node, public(f, m.last), list)
				}
			}
		}
		return nil
	})
}

// onlyPublicSources shows that a client outside never saw a machine but by the public address.
func (m *migration) onlyPublicSources(t *testing.T, at *testenv.Capture) {
	t.Helper()
	at.Never(t, "a source that is not the public address", func(pk testenv.Packet) bool {
		if pk.Dir != testenv.In || pk.Proto != unix.IPPROTO_TCP && pk.Proto != unix.IPPROTO_UDP {
			return false
		}
		return pk.Src != public(testenv.FamilyOf(pk.Src), m.last)
	})
}

// noFlows shows that a node has no translated flow of the address left.
func (m *migration) noFlows(t *testing.T, node *testenv.Node) {
	t.Helper()
	for _, f := range testenv.Families() {
		require.Empty(t, translated(through(t, node.NS, public(f, m.last))))
	}
}

// TestClusterMigrationKeepsTheAddress is a live migration with a network that keeps the machine's address (bridge binding): every
// conversation goes on through the other node, whatever the launcher Pods look like meanwhile.
func TestClusterMigrationKeepsTheAddress(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	for i, c := range []struct {
		name string
		// pause, end: what the Pods do besides the machine's move.
		pause, end func(*migration)
		// stuck is true while the source stays listed.
		stuck bool
	}{
		{name: "both ready", pause: func(*migration) {}, end: func(m *migration) {
			m.podStatus(m.name+"-source", corev1.PodSucceeded, false, m.machine.Addrs...)
		}},
		{name: "both not ready for a moment", pause: func(m *migration) {
			m.podStatus(m.name+"-source", corev1.PodRunning, false, m.machine.Addrs...)
			m.podStatus(m.name+"-target", corev1.PodRunning, false, m.machine.Addrs...)
			m.endpoints(map[string]bool{m.name + "-source": false, m.name + "-target": false})
			// In between only the source was not ready, and the agents may not have seen the end of that yet.
			for _, node := range []string{"node-a", "node-b"} {
				m.translates(node, m.last, &m.machine.Host)
			}
			m.keepsTranslating("node-a", "node-b")
		}, end: func(m *migration) {
			m.podStatus(m.name+"-target", corev1.PodRunning, true, m.machine.Addrs...)
			m.podStatus(m.name+"-source", corev1.PodSucceeded, false, m.machine.Addrs...)
		}},
		{name: "the source stays listed", pause: func(*migration) {}, end: func(m *migration) {
			m.podStatus(m.name+"-source", corev1.PodRunning, false, m.machine.Addrs...)
			m.endpoints(map[string]bool{m.name + "-source": false, m.name + "-target": true})
		}, stuck: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			name, last := fmt.Sprintf("vm-%d", i), []int{10, 11, 20}[i]
			m := p.newMigration(t, name, last)
			atExt := testenv.CaptureT(t, m.topo.Ext.NS, clientIf)
			written := [2]int64{m.writes["node-a"].Load(), m.writes["node-b"].Load()}

			m.pod(name+"-target", name, "node-b", m.machine.Addrs...)
			m.translates("node-b", last, &m.machine.Host)
			m.translates("node-a", last, &m.machine.Host)
			m.reachable(t)
			m.goOn(t)
			c.pause(m)
			require.Equal(t, written, [2]int64{m.writes["node-a"].Load(), m.writes["node-b"].Load()}, "nothing new to say")

			m.machine.move(m.topo.NodeB)
			m.announce(last, m.topo.NodeB)
			m.goOn(t)
			m.reachable(t)
			c.end(m)
			m.translates("node-a", last, nil)
			m.translates("node-b", last, &m.machine.Host)
			m.goOn(t)
			m.reachable(t)
			m.noFlows(t, m.topo.NodeA)
			m.onlyPublicSources(t, atExt)

			m.says(tenantA, name, nat.ReasonProgrammed, m.machine.Addr4().String())
			require.Equal(t, written[0], m.writes["node-a"].Load(), "the machine has left node-a")
			if c.stuck {
				m.refusesWhatComesLate(t)
			}
		})
	}
}

// refusesWhatComesLate sends the address to the node that the machine left, as a router does that hears late.
func (m *migration) refusesWhatComesLate(t *testing.T) {
	t.Helper()
	m.announce(m.last, m.topo.NodeA)
	uplink := testenv.CaptureT(t, m.topo.NodeA.NS, m.topo.NodeA.Uplink)
	for _, f := range testenv.Families() {
		visit{name: "to the node that the machine left", from: m.topo.Ext2.NS, to: public(f, m.last)}.refused(t)
	}
	uplink.Never(t, "an answer, or a packet back to the router", func(pk testenv.Packet) bool {
		ours := pk.Src == public(testenv.FamilyOf(pk.Src), m.last) || pk.Dst == public(testenv.FamilyOf(pk.Dst), m.last)
		return pk.Dir == testenv.Out && ours
	})
	m.announce(m.last, m.topo.NodeB)
	m.goOn(t)
}

// TestClusterMigrationChangesTheAddress is one with masquerade binding: the machine is another address on the other node. It is never
// two at once, and the conversations end with the old one.
func TestClusterMigrationChangesTheAddress(t *testing.T) {
	for _, way := range []struct{ source, target string }{{"node-a", "node-b"}, {"node-b", "node-a"}} {
		t.Run(way.source+" to "+way.target, func(t *testing.T) {
			p := newClusterPlane(t).startBoth()
			source, target := p.machineOn(way.source, "source"), p.machineOn(way.target, "target")
			p.pod("vm-source", "vm", way.source, source.Addrs...)
			p.expose("vm", 10)
			p.announce(10, source.Node)
			p.translates(way.source, 10, &source.Host)
			ext := p.topo.Ext
			conns := map[string]*testenv.Conn{}
			for _, f := range testenv.Families() {
				for _, tr := range []transport{overTCP(), overUDP()} {
					conns[tr.name+" "+f.String()] = tr.connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort))
				}
			}
			keeping, atExt := keep(t, source.Node.NS, conns), testenv.CaptureT(t, ext.NS, clientIf)
			reaches := func(m *testenv.Machine) {
				for _, f := range testenv.Families() {
					visit{name: "new connection", from: ext.NS, to: public(f, 10), sees: ext.Addr(f), at: m.Addr(f)}.check(t)
				}
			}

			p.pod("vm-target", "vm", way.target, target.Addrs...)
			p.says(tenantA, "vm", nat.ReasonMultipleBackends, source.Addr4().String()+", stays until one remains")
			p.translates(way.source, 10, &source.Host)
			p.translates(way.target, 10, nil)
			reaches(source)
			keeping.require(t)
			require.Equal(t, metav1.ConditionTrue, p.condition(tenantA, "vm", status.PrimaryEgress).Status)

			// An agent that starts now knows of no backend, and leaves the word to the one that does.
			p.agents[way.target].stop()
			p.start(way.target)
			p.translates(way.target, 10, nil)
			written := [2]int64{p.writes["node-a"].Load(), p.writes["node-b"].Load()}
			remains(t, 5*time.Second, func() error { // longer than the repair of a condition takes
				if now := [2]int64{p.writes["node-a"].Load(), p.writes["node-b"].Load()}; now != written {
					return fmt.Errorf("status writes of the nodes: %v, then %v", written, now)
				}
				return nil
			})
			p.says(tenantA, "vm", nat.ReasonMultipleBackends, source.Addr4().String()+", stays until one remains")

			p.podStatus("vm-source", corev1.PodRunning, false, source.Addrs...)
			p.translates(way.source, 10, nil)
			p.translates(way.target, 10, &target.Host)
			p.announce(10, target.Node)
			reaches(target)
			for name, c := range conns {
				if c.PeerLocal.Addr() == source.Addr(testenv.FamilyOf(c.Remote.Addr())) && name[:3] == "TCP" {
					requireCut(t, name, c)
				}
			}
			p.says(tenantA, "vm", nat.ReasonProgrammed, target.Addr4().String())
			// The EndpointSlice controller does not look at a Pod again that was not ready and now completes: it may stay listed.
			p.podStatus("vm-source", corev1.PodSucceeded, false, source.Addrs...)
			reaches(target)
			p.kube.DeletePod(t, tenantA, "vm-source")
			testenv.Eventually(t, controllersTake, "the source leaves", func() error { return p.listed("vm", 2) })
			reaches(target)
			p.translates(way.source, 10, nil)
			atExt.Never(t, "a source that is not the public address", func(pk testenv.Packet) bool {
				return pk.Dir == testenv.In && (pk.Proto == unix.IPPROTO_TCP || pk.Proto == unix.IPPROTO_UDP) &&
					pk.Src != public(testenv.FamilyOf(pk.Src), 10)
			})
		})
	}
}

// machineOn is a machine with an address of its node's range.
func (p *clusterPlane) machineOn(node, name string) *testenv.Machine {
	p.t.Helper()
	n := map[string]int{"node-a": 1, "node-b": 2}[node]
	m, err := p.topo.AddMachine(p.topo.Node(node), name, netip.MustParseAddr(fmt.Sprintf("10.244.%d.60", n)), netip.MustParseAddr(fmt.Sprintf("fd00:10:244:%d::60", n)))
	require.NoError(p.t, err)
	answer(p.t, m.NS)
	return m
}

// listed returns nil when the slices of a Service list so many endpoints.
func (p *clusterPlane) listed(service string, want int) error {
	slices, err := p.slicesOf(service)
	if err != nil {
		return err
	}
	n := 0
	for _, s := range slices {
		n += len(s.Endpoints)
	}
	if n != want {
		return fmt.Errorf("%d endpoints", n)
	}
	return nil
}
