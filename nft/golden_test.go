// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	cmpstd "cmp"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

var update = flag.Bool("update", false, "write testdata/*.nft from what nft prints")

// list returns `nft list table inet natplane` with counters at 0.
func list(tb testing.TB, ns *testenv.NetNS) string {
	tb.Helper()
	counts := regexp.MustCompile(`counter packets \d+ bytes \d+`)
	return counts.ReplaceAllString(ns.Nft(tb, "list", "table", "inet", tableName), "counter packets 0 bytes 0")
}

func TestGolden(t *testing.T) {
	for name, tc := range map[string]struct {
		state nat.State
		ports nat.PortRange
	}{
		"sample": {state: sampleState()}, "empty": {}, "shardports": {ports: nat.PortRange{From: 20000, To: 20010}},
	} {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, name)
			syncTo(t, open(t, ns, Options{Unowned: true, ShardPorts: tc.ports}), tc.state)
			got := list(t, ns)

			file := filepath.Join("testdata", name+".nft")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(string(want), got), "run the test with -update if this is meant")
		})
	}
}

// What nft prints can be loaded by nft, lists identically then, and is for the kernel what we wrote, down to the marks that
// nft leaves for itself.
func TestListingLoadsAgain(t *testing.T) {
	ns, other := testenv.NewT(t, "first"), testenv.NewT(t, "second")
	state, options := sampleState(), Options{Unowned: true, ShardPorts: nat.PortRange{From: 20000, To: 20010}}
	state.Host.Masquerade = append(state.Host.Masquerade, named("to the end", span("ff00::/8")))
	ours := open(t, ns, options)
	syncTo(t, ours, state)
	text := list(t, ns)

	other.NftScript(t, text)
	require.Empty(t, cmp.Diff(text, list(t, other)))
	requireHolds(t, other, state)
	theirs := open(t, other, options)
	for s := range numSets {
		require.Equal(t, rawElements(t, ours, s), rawElements(t, theirs, s), setName(s))
	}
	require.Zero(t, syncTo(t, theirs, state), "the layout too is the same")
}

// rawElements returns the elements of a set as the library gives them, sorted, without the end that nft puts at 0.
func rawElements(t *testing.T, table *Table, s setID) []nftables.SetElement {
	t.Helper()
	c, err := table.connect()
	require.NoError(t, err)
	raw, err := table.readSet(c, s)
	require.NoError(t, err)
	slices.SortFunc(raw, func(a, b nftables.SetElement) int {
		return cmpstd.Or(bytes.Compare(a.Key, b.Key), rank(a)-rank(b), bytes.Compare(a.KeyEnd, b.KeyEnd))
	})
	return slices.DeleteFunc(raw, func(e nftables.SetElement) bool {
		return e.IntervalEnd && !slices.ContainsFunc(e.Key, func(b byte) bool { return b != 0 })
	})
}
