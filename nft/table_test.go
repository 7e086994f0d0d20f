// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func TestSecondSyncWritesNothing(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	first := syncTo(t, table, sampleState())
	require.True(t, first.Replaced)
	requireHolds(t, ns, sampleState())

	before := generation(t, ns)
	require.Zero(t, syncTo(t, table, sampleState()))
	require.Equal(t, before, generation(t, ns))
}

// A new process takes the table with one transaction that changes no element, and then writes nothing.
func TestRestartChangesNothing(t *testing.T) {
	for name, o := range map[string]Options{"owned": {}, "unowned": {Unowned: true}} {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			first := open(t, ns, o)
			syncTo(t, first, sampleState())
			handles := ns.Nft(t, "-a", "list", "table", "inet", tableName)
			require.NoError(t, first.Close())

			second := open(t, ns, o)
			require.Zero(t, syncTo(t, second, sampleState()))
			before := generation(t, ns)
			require.Zero(t, syncTo(t, second, sampleState()))
			require.Equal(t, before, generation(t, ns))
			require.Equal(t, handles, ns.Nft(t, "-a", "list", "table", "inet", tableName))
		})
	}
}

func TestApplyWritesOnlyDifferences(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	old, new := sampleState(), sampleState()
	syncTo(t, table, old)
	// The web machine moves: one value in whole4.
	new.Addresses[0].Whole.Backend = ip("10.244.1.99")

	before := generation(t, ns)
	result, err := table.Apply(delta(old, new))
	require.NoError(t, err)
	require.Positive(t, result.Compared)
	require.Positive(t, result.Committed)
	require.Equal(t, Result{Added: 1, Removed: 1, Compared: result.Compared, Committed: result.Committed}, result)
	require.Equal(t, before+1, generation(t, ns))
	requireHolds(t, ns, new)
}

func TestApplyOfNothingSendsNothing(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	old, new := sampleState(), sampleState()
	syncTo(t, table, old)
	new.Addresses[0].Attached = []netip.Addr{ip("10.244.1.10")} // not in the table

	before := generation(t, ns)
	for _, d := range []nat.Delta{{}, delta(old, new)} {
		result, err := table.Apply(d)
		require.NoError(t, err)
		require.Zero(t, result)
	}
	require.Equal(t, before, generation(t, ns))
}

func TestApplyNeedsASync(t *testing.T) {
	ns := testenv.NewT(t, "node")
	_, err := open(t, ns, Options{}).Apply(nat.Delta{})
	require.ErrorIs(t, err, ErrUnsure)
}

// A record that the kernel cannot hold is left out and named; the others are programmed in the same pass.
func TestInvalidRecordIsIsolated(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	good, bad := sampleState(), sampleState()
	bad.Addresses[0].Whole.Backend = ip("::ffff:10.244.1.10")
	bad.Backends = bad.Backends[1:]
	good.Addresses, good.Backends = good.Addresses[1:], good.Backends[1:]

	result, err := table.Sync(bad)
	require.NoError(t, err)
	require.Len(t, result.Invalid, 1)
	require.ErrorContains(t, result.Invalid[0], "203.0.113.10")
	requireHolds(t, ns, good)

	repaired := sampleState()
	repaired.Backends = repaired.Backends[1:]
	result, err = table.Apply(delta(bad, repaired))
	require.NoError(t, err)
	require.Empty(t, result.Invalid)
	requireHolds(t, ns, repaired)
	result, err = table.Apply(delta(repaired, bad))
	require.NoError(t, err)
	require.Len(t, result.Invalid, 1)
	requireHolds(t, ns, good)
}

func TestBackends(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	none, err := table.Backends()
	require.NoError(t, err)
	require.Empty(t, none)

	state := sampleState()
	state.Addresses[1].Ports[1].Target = target("10.244.1.20:53")
	syncTo(t, table, state)
	got, err := open(t, ns, Options{}).Backends() // while another process owns the table
	require.NoError(t, err)
	require.Equal(t, map[netip.Addr][]netip.Addr{
		ip("203.0.113.10"):     {ip("10.244.1.10")},
		ip("203.0.113.11"):     {ip("10.244.1.10"), ip("10.244.1.20")},
		ip("203.0.113.20"):     {ip("10.244.1.20")},
		ip("203.0.113.40"):     {ip("10.244.2.40")},
		ip("2001:db8:203::10"): {ip("fd00:10:244:1::10")},
		ip("2001:db8:203::20"): {ip("fd00:10:244:1::20")},
	}, got)
}

func TestRemove(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	require.NoError(t, table.Remove(), "no table")
	syncTo(t, table, sampleState())
	require.NoError(t, table.Remove())
	require.Empty(t, ns.Nft(t, "list", "ruleset"))
	_, err := table.Apply(nat.Delta{})
	require.ErrorIs(t, err, ErrUnsure)

	// What a dead agent left is removed without being owned first.
	syncTo(t, table, sampleState())
	require.NoError(t, table.Close())
	require.NoError(t, open(t, ns, Options{}).Remove())
	require.Empty(t, ns.Nft(t, "list", "ruleset"))
}

func TestCounters(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	none, err := table.Counters()
	require.NoError(t, err)
	require.Empty(t, none)

	// A process of the node dials an address that is hosted but forwards nothing.
	syncTo(t, table, nat.State{Addresses: []nat.Address{{Public: ip("127.0.0.77"), Owner: owner("ns", "svc"), Hosted: true}}})
	require.Error(t, ns.Do(func() error { return dialTCP("127.0.0.77:9") }))
	counters, err := table.Counters()
	require.NoError(t, err)
	var hit []string
	for _, c := range counters {
		require.NotEmpty(t, c.Comment)
		if c.Packets > 0 {
			require.NotZero(t, c.Bytes)
			hit = append(hit, c.Chain+": "+c.Comment)
		}
	}
	require.Equal(t, []string{"translate: hosted here and not listed"}, hit)
}

func TestClosed(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	require.NoError(t, table.Close())
	_, err := table.Sync(nat.State{})
	require.ErrorIs(t, err, errClosed)
}

// Tables of others are not read, so nothing in them can be in the way.
func TestForeignTables(t *testing.T) {
	ns := testenv.NewT(t, "node")
	ns.NftScript(t, `
		table inet other {
			map vm { type ipv4_addr . inet_service : verdict; flags interval; elements = { 192.0.2.0/24 . 1-100 : drop }; }
			set aging { type ipv4_addr; flags timeout; elements = { 192.0.2.1 timeout 1h }; }
			set dyn { type ipv4_addr . ether_addr; flags dynamic; size 100; }
			map tmap { typeof ip saddr : meta mark; elements = { 192.0.2.1 : 0x1 }; }
			quota q { over 10 mbytes; }
			chain natplane { type filter hook input priority 0; limit rate 1/second counter; }
		}
		table ip natplane { set public4 { type ether_addr; }; chain leak { }; }
		table ip6 natplane { map public4 { type mark : verdict; }; }`)
	table := open(t, ns, Options{})
	require.True(t, syncTo(t, table, sampleState()).Replaced)
	require.Zero(t, syncTo(t, table, sampleState()))
	requireHolds(t, ns, sampleState())
	ns.Nft(t, "list", "table", "ip", "natplane")
}
