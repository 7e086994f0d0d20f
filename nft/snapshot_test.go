// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// leftBehind is a table that holds the sample state, and whose agent is gone.
func leftBehind(t *testing.T, o Options) *testenv.NetNS {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, o)
	syncTo(t, table, sampleState())
	require.NoError(t, table.Close())
	return ns
}

// A start does not read again what Backends read: an element that only the snapshot has is deleted, which the kernel refuses.
func TestStartReadsMapsOnce(t *testing.T) {
	for name, o := range map[string]Options{"owned": {}, "unowned": {Unowned: true}} {
		t.Run(name, func(t *testing.T) {
			ns := leftBehind(t, o)
			table := open(t, ns, o)
			_, err := table.Backends()
			require.NoError(t, err)
			for s := port4; s <= egress6; s++ {
				require.NotNil(t, table.snapshot.of(s), setName(s))
			}
			stray := table.snapshot.sets[whole4].elements[0]
			stray.addr = ip("203.0.113.99")
			table.snapshot.sets[whole4].elements = append(table.snapshot.sets[whole4].elements, stray)
			_, err = table.Sync(sampleState())
			require.Error(t, err, "the snapshot counts")
			require.Nil(t, table.snapshot)
			require.Zero(t, syncTo(t, table, sampleState()), "after an error everything is read")
			requireHolds(t, ns, sampleState())
		})
	}
}

// What others do between the two reads is seen, whatever table it is in; and what this Table itself did last.
func TestSnapshotOfAnotherTime(t *testing.T) {
	const foreign = "add element " + inTable + "whole4 { 203.0.113.99 : 10.9.9.9 }"
	for name, meanwhile := range map[string]func(*testing.T, *testenv.NetNS, *Table){
		"element added":   func(t *testing.T, ns *testenv.NetNS, _ *Table) { ns.NftScript(t, foreign) },
		"element removed": func(t *testing.T, ns *testenv.NetNS, _ *Table) { ns.NftScript(t, "flush map "+inTable+"whole4") },
		"table deleted":   func(t *testing.T, ns *testenv.NetNS, _ *Table) { ns.NftScript(t, "delete table "+inTable) },
		"table of others": func(t *testing.T, ns *testenv.NetNS, _ *Table) { ns.NftScript(t, "add table ip other") },
		"own changes": func(t *testing.T, _ *testenv.NetNS, table *Table) {
			syncTo(t, table, sampleState())
			next := sampleState()
			next.Addresses = next.Addresses[1:]
			_, err := table.Apply(delta(sampleState(), next))
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			ns := leftBehind(t, Options{Unowned: true})
			table := open(t, ns, Options{Unowned: true})
			_, err := table.Backends()
			require.NoError(t, err)
			meanwhile(t, ns, table)
			syncTo(t, table, sampleState())
			requireHolds(t, ns, sampleState())
			require.Zero(t, untouched(syncTo(t, table, sampleState())))
		})
	}
}

// A map with something strange in it still says what it translates, and is written anew.
func TestContentsOfAStrangeMap(t *testing.T) {
	e := encoder{defs: setDefs()}
	good := nftables.SetElement{Key: []byte{203, 0, 113, 10}, Val: []byte{10, 0, 0, 1}}
	counted, short := good, good
	counted.Counter, short.Key = &expr.Counter{}, []byte{203, 0}
	for _, raw := range [][]nftables.SetElement{{counted, good}, {good, short}, {short, good, good}} {
		es, ok := e.decode(whole4, raw)
		require.False(t, ok)
		require.Contains(t, es, element{key: key{set: whole4, addr: ip("203.0.113.10")}, value: target("10.0.0.1:0")})
	}
}

// An agent that waits for the owner of the table keeps nothing of what it read.
func TestSnapshotOfAWaitingAgent(t *testing.T) {
	ns := testenv.NewT(t, "node")
	first, second := openOwned(t, ns), openOwned(t, ns)
	syncTo(t, first, sampleState())
	_, err := second.Backends()
	require.NoError(t, err)
	_, err = second.Sync(sampleState())
	require.ErrorIs(t, err, ErrOwned)
	require.Nil(t, second.snapshot)
}
