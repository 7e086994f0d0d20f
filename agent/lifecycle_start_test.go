// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/testenv"
)

// olderLayout is the table that an early version wrote for nft's sample state, in which web has the address 10.
func olderLayout(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile("testdata/older-layout.nft")
	require.NoError(t, err)
	return string(text)
}

// ruleset is the whole table but for its elements as text, without counts and without who owns it.
func ruleset(t testing.TB, ns *testenv.NetNS) string {
	t.Helper()
	return rulesOf(ns.Nft(t, "list", "table", "inet", "natplane"))
}

func rulesOf(text string) string {
	text = regexp.MustCompile(`packets \d+ bytes \d+`).ReplaceAllString(text, "packets 0 bytes 0")
	text = regexp.MustCompile(`(?m)^\tflags owner.*\n\n?`).ReplaceAllString(text, "")
	text = regexp.MustCompile(`(?m)^table inet natplane \{.*$`).ReplaceAllString(text, "table inet natplane {")
	return regexp.MustCompile(`(?s)\n\t\telements = \{.*?\}\n`).ReplaceAllString(text, "\n")
}

// requireFresh compares a node with a fresh programming of the state that its agent has.
func (p *plane) requireFresh(t testing.TB, node string) {
	t.Helper()
	state, err := p.agents[node].agent.State(t.Context())
	require.NoError(t, err)
	fresh := testenv.NewT(t, "fresh")
	reference, err := nft.Open(nft.Options{NetNS: fresh.FD(), Unowned: true})
	require.NoError(t, err)
	_, err = reference.Sync(state)
	require.NoError(t, err)
	require.NoError(t, reference.Close())
	require.Empty(t, cmp.Diff(ruleset(t, fresh), ruleset(t, p.node(node).NS)))
	require.Empty(t, cmp.Diff(elements(t, fresh), elements(t, p.node(node).NS)))
}

// TestStartOn whatever is in the kernel: afterwards it is as if written afresh, flows that are right stay and lose nothing, also while the
// table is replaced.
func TestStartOn(t *testing.T) {
	t.Parallel()
	ranBefore := func(t *testing.T, p *plane, edits ...func(*agent.Options)) {
		p.start("node-a", edits...)
		p.settle()
		p.stop("node-a")
	}
	for name, c := range map[string]struct {
		before func(*testing.T, *plane)
		// translates is true when the node translates before the agent starts.
		translates bool
	}{
		"an empty kernel":          {func(*testing.T, *plane) {}, false},
		"its own table":            {func(t *testing.T, p *plane) { ranBefore(t, p) }, true},
		"a table without an owner": {func(t *testing.T, p *plane) { ranBefore(t, p, unowned) }, true},
		"a stale table": {func(t *testing.T, p *plane) {
			p.serveLater(p.topo.DB, exposure{name: "gone", public: dual(20), whole: true})
			ranBefore(t, p)
			p.objects.deleteService(tenantNamespace + "gone")
		}, true},
		"a table of other objects": {func(t *testing.T, p *plane) {
			ranBefore(t, p)
			p.serveLater(p.topo.DB, exposure{name: "new", public: dual(20), ports: []corev1.ServicePort{tcpPort("tcp", webPort)}})
		}, true},
		"another layout": {func(t *testing.T, p *plane) {
			p.topo.NodeA.NS.NftScript(t, olderLayout(t))
			p.topo.NodeA.NS.Nft(t, "flush", "set", "inet", "natplane", "restricted4") // every client, as the objects of this test say
		}, true},
		"half a table": {func(t *testing.T, p *plane) {
			p.topo.NodeA.NS.NftScript(t, "table inet natplane {\n\tmap whole4 {\n\t\ttype ipv4_addr : ipv4_addr\n\t\telements = { 203.0.113.20 : 10.244.1.99 }\n\t}\n}")
		}, false},
		"a table of the same name": {func(t *testing.T, p *plane) {
			p.topo.NodeA.NS.NftScript(t, "table inet natplane {\n\tset whole4 {\n\t\ttype inet_service\n\t}\n\tchain in {\n\t\ttype filter hook input priority 0;\n\t\ttcp dport 1 drop\n\t}\n}")
		}, false},
		"a table that others edited": {func(t *testing.T, p *plane) {
			ranBefore(t, p, unowned)
			node := p.topo.NodeA.NS
			node.Nft(t, "add", "rule", "inet", "natplane", "ingress_guard", "tcp dport 1 drop")
			node.Nft(t, "add", "element", "inet", "natplane", "whole4", "{ 203.0.113.99 : 10.244.1.99 }")
			node.Nft(t, "delete", "element", "inet", "natplane", "egress6", "{ fd00:10:244:1::20 }")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := emptyTenant(t)
			p.serveLater(p.topo.Web, exposure{name: "web", age: 2, public: dual(10), whole: true})
			p.serveLater(p.topo.DB, exposure{name: "db", age: 1, public: dual(11), whole: true})
			c.before(t, p)
			s := newStage(t, p, p.topo.Web)
			conns := map[string]*testenv.Conn{}
			if c.translates {
				conns = s.through(t, 10, true)
			}
			s.undisturbed(t, conns, func() {
				s.start("node-a")
				s.settle()
			})
			p.requireFresh(t, "node-a")
			if !c.translates {
				s.through(t, 10, true)
			}
		})
	}
}

// serveLater exposes a machine to agents to come.
func (p *plane) serveLater(m *testenv.Machine, e exposure) {
	e.name, e.node, e.backends = tenantNamespace+e.name, m.Node.Name, m.Addrs
	p.objects.expose(e)
}

// TestFieldCase_B86_NothingIsRemovedUntilTheSourceIsComplete, however little the source has delivered, and everything that should be is then.
func TestFieldCase_B86_NothingIsRemovedUntilTheSourceIsComplete(t *testing.T) {
	t.Parallel()
	s := wholeStage(t, testenv.WithRouterPodRoutes(false))
	both := s.converseBoth(t, 10)
	keeping := keep(t, s.topo.NodeA.NS, both[0].in)
	s.stop("node-a")
	before := elements(t, s.topo.NodeA.NS)
	events := watchTables(t, s.topo.NodeA.NS)

	s.objects.deleteService(tenantNamespace + "web")
	s.startIncomplete("node-a")
	r := s.agents["node-a"]
	for _, what := range []func(){
		func() { s.objects.deleteSlices(tenantNamespace + "web") },
		func() { s.objects.pod(tenantNamespace+"another", "node-a", s.topo.Pod.Addrs...) },
	} {
		what()
		testenv.Eventually(t, patience, "taken", func() error {
			if !r.source.taken() {
				return os.ErrNotExist
			}
			return nil
		})
		_, err := r.agent.Plan(t.Context())
		require.NoError(t, err)
		h := r.agent.Health()
		require.False(t, h.Ready)
		require.False(t, h.Synced)
	}
	require.Empty(t, events.changes())
	require.Equal(t, before, elements(t, s.topo.NodeA.NS))
	keeping.require(t)

	r.source.finish()
	s.settle()
	for _, c := range both {
		c.requireInCut(t)
		c.requireNoFlow(t, s.machine)
	}
	require.NotContains(t, elements(t, s.topo.NodeA.NS), "203.0.113.10")
}

// startIncomplete starts an agent whose source has not delivered everything yet.
func (p *plane) startIncomplete(name string) {
	p.t.Helper()
	p.start(name, func(o *agent.Options) { o.Source.(*memorySource).complete = false })
}

// finish says that everything was delivered.
func (s *memorySource) finish() {
	s.of.mu.Lock()
	s.complete = true
	s.of.mu.Unlock()
	s.signal()
}

// TestTwoAgentsOnOneNode: the second waits and says so, and works within a second of the first one's end.
func TestTwoAgentsOnOneNode(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]func(*agent.Options){"owned": func(*agent.Options) {}, "unowned": unowned} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testTwoAgents(t, mode)
		})
	}
}
