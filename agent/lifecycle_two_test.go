// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// takeOverWithin is what R17 grants the second agent.
const takeOverWithin = time.Second

func testTwoAgents(t *testing.T, mode func(*agent.Options)) {
	p := emptyTenant(t)
	node := p.topo.NodeA.NS
	p.serveLater(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	p.start("node-a", mode)
	p.settle()
	first := p.agents["node-a"]
	s := newStage(t, p, p.topo.Web)
	conns := s.through(t, 10, true)
	keeping, busy, events := keep(t, node, conns), newTalkers(t), watchTables(t, node)
	for _, c := range conns {
		busy.talk(c, false)
	}

	log, url := &writing{}, ""
	p.start("node-a", mode, logTo(log), func(o *agent.Options) { o.HTTP, url = listenIn(t, node) })
	second := p.agents["node-a"]
	client := clientIn(node)
	testenv.Eventually(t, patience, "the second waits", func() error {
		code, body, err := get(client, url+"/readyz")
		if err == nil && (code != http.StatusServiceUnavailable || body != "another agent owns the table on this node\n") {
			err = errors.New(body)
		}
		return err
	})
	code, _, err := get(client, url+"/healthz")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code, "waiting is healthy")
	require.True(t, first.agent.Health().Ready)

	end := time.Now()
	first.stop()
	testenv.Eventually(t, patience, "the second takes over", func() error {
		if !second.agent.Health().Ready {
			return errors.New(log.String())
		}
		return nil
	})
	took := time.Since(end)
	t.Logf("taken over within %v", took)
	require.Less(t, took, takeOverWithin)
	busy.stop()
	p.settle()
	keeping.require(t)
	require.Empty(t, events.changes())
	require.Equal(t, 1, log.lines("another agent owns the table on this node; waiting for its end"), log)
	require.Equal(t, 1, log.lines("took over from the other agent"), log)

	// The first one is not missed.
	p.objects.forget(first.source)
	p.serve(p.topo.DB, exposure{name: "db", public: dual(20), whole: true})
	inside := overTCP().serveOn(t, p.topo.DB.NS, webPort)
	for _, f := range testenv.Families() {
		overTCP().connect(t, p.topo.Ext.NS, anywhere(), inside.At(public(f, 20)))
	}
}

// listenIn listens inside a namespace, for an agent's HTTP.
func listenIn(t testing.TB, ns *testenv.NetNS) (net.Listener, string) {
	t.Helper()
	var l net.Listener
	require.NoError(t, ns.Do(func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}))
	return l, "http://" + l.Addr().String()
}
