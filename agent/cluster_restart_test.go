// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const (
	restarts  = 20
	fleetSize = 1000
	// fleetTakes bounds what the whole fleet needs to pass through the API server and its controllers on a busy machine.
	fleetTakes = 2 * time.Minute
)

// TestClusterRestarts restarts the agent again and again while 1,000 machines and Services change: conversations by addresses that do not
// change lose no packet and keep their flows, and in the end the kernel is as if it had been programmed afresh (R17).
func TestClusterRestarts(t *testing.T) {
	p := newClusterPlane(t)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	p.pod("web", "web", "node-a", web.Addrs...)
	p.pod("db", "db", "node-a", db.Addrs...)
	p.expose("web", 10)
	p.expose("db", 20)
	begin := time.Now()
	f := p.newFleet(fleetSize)
	t.Logf("%d machines with their Services made in %v", f.n, time.Since(begin).Round(time.Millisecond))
	p.start("node-a")
	f.settled(fleetTakes)
	p.translates("node-a", 10, &web.Host)
	p.translates("node-a", 20, &db.Host)

	conns := map[string]*testenv.Conn{}
	outTCP, outUDP := overTCP().serveOn(t, ext.NS, 0), overUDP().serveOn(t, ext.NS, 0)
	for m, last := range map[*testenv.Machine]int{web: 10, db: 20} {
		answer(t, m.NS)
		for _, fam := range testenv.Families() {
			suffix := " " + m.Name + " " + fam.String()
			dialled := netip.AddrPortFrom(public(fam, last), appPort)
			conns["TCP in"+suffix] = overTCP().connect(t, ext.NS, anywhere(), dialled)
			conns["UDP in"+suffix] = overUDP().connect(t, ext.NS, anywhere(), dialled)
			conns["TCP out"+suffix] = overTCP().connect(t, m.NS, anywhere(), outTCP.At(ext.Addr(fam)))
			conns["UDP out"+suffix] = overUDP().connect(t, m.NS, anywhere(), outUDP.At(ext.Addr(fam)))
		}
	}
	keeping, busy := keep(t, p.topo.NodeA.NS, conns), newTalkers(t)
	for _, c := range conns {
		busy.talk(c, false)
	}

	stop := f.churn(4)
	for range restarts {
		p.agents["node-a"].stop()
		before := f.changes.Load()
		p.start("node-a")
		changed(t, f, before+fleetSize/restarts)
	}
	stop()
	f.calm()
	f.settled(fleetTakes)
	busy.stop()
	keeping.require(t)
	t.Logf("%d restarts, %d changes meanwhile", restarts, f.changes.Load())
	p.requireAsIfFresh(t)
	p.says(tenantA, "web", nat.ReasonProgrammed)
}

// changed waits until so many changes were made.
func changed(t *testing.T, f *fleet, n int64) {
	t.Helper()
	testenv.Eventually(t, controllersTake, "changes", func() error {
		if have := f.changes.Load(); have < n {
			return fmt.Errorf("%d instead of %d", have, n)
		}
		return nil
	})
}

// requireAsIfFresh compares the table of node-a with what an agent writes that finds none.
func (p *clusterPlane) requireAsIfFresh(t *testing.T) {
	t.Helper()
	node := p.topo.NodeA.NS
	rules, list := ruleset(t, node), elements(t, node)
	p.agents["node-a"].stop()
	node.Nft(t, "delete", "table", "inet", "natplane")
	p.start("node-a")
	require.Empty(t, cmp.Diff(ruleset(t, node), rules))
	require.Empty(t, cmp.Diff(elements(t, node), list))
}
