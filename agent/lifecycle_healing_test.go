// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// foreignChanges are what an administrator or another program may do to our table, as arguments of nft.
func foreignChanges() map[string]string {
	return map[string]string{
		"flush ruleset":   "flush ruleset",
		"delete table":    "delete table inet natplane",
		"flush table":     "flush table inet natplane",
		"flush chain":     "flush chain inet natplane ingress_nat",
		"flush map":       "flush map inet natplane whole4",
		"delete element":  "delete element inet natplane whole4 { 203.0.113.10 }",
		"add element":     "add element inet natplane whole4 { 203.0.113.99 : 10.244.1.99 }",
		"add rule":        "add rule inet natplane ingress_guard tcp dport 1 drop",
		"delete and more": "delete table inet natplane; add table inet natplane; add set inet natplane whole4 { type inet_service; }",
	}
}

// foreignNft runs an nft command on a node as another process.
func foreignNft(t testing.TB, ns *testenv.NetNS, command string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := ns.Run(ctx, "nft", command)
	return err
}

// TestFieldCase_B77_OwnedTableIsOutOfReach: what others try does nothing, and no packet notices it.
func TestFieldCase_B77_OwnedTableIsOutOfReach(t *testing.T) {
	t.Parallel()
	s := wholeStage(t)
	node := s.topo.NodeA.NS
	before, events := elements(t, node), watchTables(t, node)
	s.undisturbed(t, s.through(t, 10, true), func() {
		for range 3 {
			for name, command := range foreignChanges() {
				err := foreignNft(t, node, command)
				// A flush of everything passes by what it may not touch.
				require.Equal(t, name != "flush ruleset", err != nil, "%s: %v", name, err)
			}
		}
	})
	require.Empty(t, events.changes())
	require.Equal(t, before, elements(t, node))
	s.requireFresh(t, "node-a")
	s.through(t, 10, true)
}

// repairedWithin is what R18 grants where the table cannot be owned.
const repairedWithin = time.Second

// TestFieldCase_B77_UnownedTableIsRepaired within a second, without anything from the API server. The gap is logged: from the moment when
// the foreign command has returned.
func TestFieldCase_B77_UnownedTableIsRepaired(t *testing.T) {
	t.Parallel()
	// Packets that leave untranslated in the gap find no way back, as private addresses do: an answer would be a reset.
	p := emptyTenant(t, testenv.WithRouterPodRoutes(false))
	p.serveLater(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	log := &writing{}
	p.start("node-a", unowned, logTo(log))
	p.settle()
	node := p.topo.NodeA.NS
	s := newStage(t, p, p.topo.Web)
	conns := s.through(t, 10, true)
	keeping := keep(t, node, conns)
	want := ruleset(t, node) + elements(t, node)
	for name, command := range foreignChanges() {
		rounds := 3
		if name == "flush ruleset" || name == "delete table" || name == "delete element" {
			rounds = 10 // those that the documentation speaks of
		}
		var gaps []time.Duration
		for range rounds {
			require.NoError(t, foreignNft(t, node, command), name)
			gaps = append(gaps, s.repaired(t, name, want))
		}
		slices.Sort(gaps)
		t.Logf("%-15s repaired after %v (median of %d), at most %v", name, gaps[len(gaps)/2], len(gaps), gaps[len(gaps)-1])
		require.Less(t, gaps[len(gaps)-1], repairedWithin, name)
	}
	keeping.require(t)
	p.settle()
	require.GreaterOrEqual(t, p.agents["node-a"].agent.Health().Drift, len(foreignChanges()))
	require.Positive(t, log.lines("another process changed the table"))
	require.Less(t, log.lines("level=ERROR"), len(foreignChanges()), "a foreign change between reading and writing is one error: %s", log)
	s.through(t, 10, true)
}

// repaired waits for the table to be as it was and returns how long that took; looking takes a part of it.
func (s *stage) repaired(t testing.TB, name, want string) time.Duration {
	t.Helper()
	begin := time.Now()
	node := s.topo.NodeA.NS
	testenv.Eventually(t, patience, "repair after "+name, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		text, err := node.Run(ctx, "nft", "list", "table", "inet", "natplane")
		if err != nil {
			return err
		}
		if got := rulesOf(text) + elementsOf(text); got != want {
			return fmt.Errorf("not as before:\n%s", cmp.Diff(want, got))
		}
		return nil
	})
	return time.Since(begin)
}
