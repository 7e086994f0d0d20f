// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// watch runs Watch during the test and returns a function that awaits the next one.
func watch(t *testing.T, table *Table) (await func(what string)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- table.Watch(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	return func(what string) {
		t.Helper()
		select {
		case <-table.Changed():
		case err := <-done:
			done <- nil
			require.NoError(t, err)
		case <-time.After(5 * time.Second):
			require.Fail(t, "no signal", what)
		}
	}
}

func TestWatchSeesOthers(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	await := watch(t, table)
	syncTo(t, table, sampleState())
	for _, command := range [][]string{
		{"add", "element", "inet", tableName, "public4", "{ 192.0.2.99 }"},
		{"add", "rule", "inet", tableName, "leak", "accept"},
		{"add", "chain", "inet", tableName, "extra"},
		{"add", "set", "inet", tableName, "extra", "{ type mark; }"},
		{"add", "counter", "inet", tableName, "extra"},
		{"flush", "ruleset"},
	} {
		ns.Nft(t, command...)
		await(command[0] + " " + command[1])
		require.NotZero(t, syncTo(t, table, sampleState()))
	}
}

// Neither our own transactions nor other tables give a signal. Events arrive in order: the one that is awaited at the end
// comes after all that must be silent.
func TestWatchIsSilent(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	await := watch(t, table)
	syncTo(t, table, nat.State{})
	_, err := table.Apply(delta(nat.State{}, sampleState()))
	require.NoError(t, err)
	ns.NftScript(t, `
		table inet other { set natplane { type ipv4_addr; elements = { 192.0.2.1 }; }; chain natplane { counter; }; }
		table ip natplane { set public4 { type ipv4_addr; elements = { 192.0.2.1 }; }; }
		table inet natplane2 { }
		table inet natplan { }`)
	ns.Nft(t, "delete", "table", "inet", "other")
	ns.Nft(t, "add", "element", "inet", tableName, "public4", "{ 192.0.2.99 }")
	await("the foreign element")
	require.Empty(t, table.Changed())
}

func TestEventsThatAreNotOurs(t *testing.T) {
	for name, data := range map[string][]byte{
		"nothing":            nil,
		"no attributes":      {1, 0, 0, 0},
		"other family":       append([]byte{2, 0, 0, 0, 13, 0, 1, 0}, "natplane\x00\x00\x00\x00"...),
		"short attribute":    {1, 0, 0, 0, 3, 0, 1, 0},
		"attribute too long": {1, 0, 0, 0, 200, 0, 1, 0, 'n'},
		"longer name":        append([]byte{1, 0, 0, 0, 14, 0, 1, 0}, "natplane2\x00\x00\x00"...),
	} {
		require.Empty(t, aboutTable(data), name)
	}
	require.Equal(t, tableName, aboutTable(append([]byte{1, 0, 0, 0, 13, 0, 1, 0}, "natplane\x00\x00\x00\x00"...)))
	require.Equal(t, tableName, aboutTable(append([]byte{1, 0, 0, 0, 6, 0, 9, 0, 1, 2, 0, 0, 13, 0, 1, 0}, "natplane\x00\x00\x00\x00"...)), "not first")
	require.Equal(t, tenantTable, aboutTable(append([]byte{1, 0, 0, 0, 21, 0, 1, 0}, "natplane_tenants\x00\x00\x00\x00"...)))
}

// What happened between Open and Watch is not lost.
func TestWatchSeesTheTimeBefore(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	syncTo(t, table, sampleState())
	ns.Nft(t, "flush", "ruleset")
	watch(t, table)("flush before Watch")
}

// Events that the kernel had to drop may have been about our table.
func TestWatchLosesEvents(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	require.NoError(t, table.events.SetReadBuffer(1))
	for range 20 {
		ns.Nft(t, "add", "table", "inet", "other")
		ns.Nft(t, "delete", "table", "inet", "other")
	}
	watch(t, table)("lost events")
}

// Nobody can change an owned table, and there is nothing to watch.
func TestWatchOfAnOwnedTable(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := openOwned(t, ns)
	watch(t, table)
	syncTo(t, table, sampleState())
	ns.Nft(t, "flush", "ruleset")
	require.Empty(t, table.Changed())
}

// The log names the process that changed the table, once per transaction.
func TestWatchLogsTheProcess(t *testing.T) {
	ns := testenv.NewT(t, "node")
	var lines testenv.Output
	table := open(t, ns, Options{Unowned: true, Log: slog.New(slog.NewTextHandler(&lines, nil))})
	watch(t, table)
	syncTo(t, table, sampleState())
	ns.Nft(t, "flush", "ruleset")
	testenv.Eventually(t, 5*time.Second, "line in the log", func() error {
		if !strings.Contains(lines.String(), "process=nft") {
			return errors.New(lines.String())
		}
		return nil
	})
	require.Equal(t, 1, strings.Count(lines.String(), "\n"), lines.String())
}
