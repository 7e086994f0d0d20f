// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func TestOwnedTableIsSafeFromOthers(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := openOwned(t, ns)
	syncTo(t, table, sampleState())

	ns.Nft(t, "flush", "ruleset") // passes the table by
	for _, command := range [][]string{
		{"delete", "table", "inet", tableName},
		{"flush", "chain", "inet", tableName, "translate"},
		{"delete", "element", "inet", tableName, "whole4", "{ 203.0.113.10 }"},
	} {
		_, err := ns.Run(t.Context(), "nft", command...)
		require.ErrorContains(t, err, "Operation not permitted")
	}
	require.Zero(t, syncTo(t, table, sampleState()))
	requireHolds(t, ns, sampleState())
}

func TestOneOwnerAtATime(t *testing.T) {
	ns := testenv.NewT(t, "node")
	first, second := openOwned(t, ns), openOwned(t, ns)
	syncTo(t, first, sampleState())

	_, err := second.Sync(nat.State{})
	require.ErrorIs(t, err, ErrOwned)
	require.ErrorContains(t, err, "inet natplane")
	_, err = second.Sync(sampleState()) // nothing to write, but not ours
	require.ErrorIs(t, err, ErrOwned)
	require.ErrorIs(t, second.Remove(), ErrOwned)
	_, err = open(t, ns, Options{Unowned: true}).Sync(nat.State{})
	require.ErrorIs(t, err, ErrOwned)
	requireHolds(t, ns, sampleState())

	require.NoError(t, first.Close())
	require.Zero(t, syncTo(t, second, sampleState()))
	_, err = open(t, ns, Options{}).Sync(nat.State{})
	require.ErrorIs(t, err, ErrOwned)
}

// Two agents that both saw no table: the transaction of the slower one meets the table of the other.
func TestOwnerRace(t *testing.T) {
	ns := testenv.NewT(t, "node")
	first, second := openOwned(t, ns), openOwned(t, ns)
	flush := second.flush
	second.flush = func(c *nftConn) error {
		syncTo(t, first, sampleState())
		return flush(c)
	}
	_, err := second.Sync(nat.State{})
	require.ErrorIs(t, err, ErrOwned)
	requireHolds(t, ns, sampleState())
	require.Zero(t, syncTo(t, first, sampleState()))
}

// A table without the flags cannot be given an owner, so it is made anew; one with them is not when they are unwanted.
func TestFlagsChange(t *testing.T) {
	ns := testenv.NewT(t, "node")
	openOwned(t, ns)
	for _, o := range []Options{{Unowned: true}, {}, {Unowned: true}} {
		table := open(t, ns, o)
		result := syncTo(t, table, sampleState())
		require.True(t, result.Replaced)
		require.Zero(t, syncTo(t, table, sampleState()))
		requireHolds(t, ns, sampleState())
		require.NoError(t, table.Close())
	}
}

// The ownership survives an error: the broken connection is only given up when the next one is there.
func TestOwnerAfterError(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := openOwned(t, ns)
	syncTo(t, table, sampleState())
	failOnce(table, func(*nftConn) error { return errInjected })
	_, err := table.Apply(delta(sampleState(), nat.State{}))
	require.ErrorIs(t, err, errInjected)
	ns.Nft(t, "flush", "ruleset")
	require.Zero(t, syncTo(t, table, sampleState()))
	_, err = ns.Run(t.Context(), "nft", "delete", "table", "inet", tableName)
	require.ErrorContains(t, err, "Operation not permitted")
}
