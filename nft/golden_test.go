// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

var update = flag.Bool("update", false, "write testdata/*.nft from what nft prints")

// list returns `nft list table inet natplane` with counters at 0.
func list(tb testing.TB, ns *testenv.NetNS) string {
	tb.Helper()
	counts := regexp.MustCompile(`counter packets \d+ bytes \d+`)
	program := regexp.MustCompile(` # progname .*`)
	text := ns.Nft(tb, "list", "table", "inet", tableName)
	return counts.ReplaceAllString(program.ReplaceAllString(text, ""), "counter packets 0 bytes 0")
}

func TestGolden(t *testing.T) {
	for name, state := range map[string]nat.State{"sample": sampleState(), "empty": {}} {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, name)
			syncTo(t, open(t, ns, Options{}), state)
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

// What nft prints can be loaded by nft, lists identically then, and holds the same for us.
func TestListingLoadsAgain(t *testing.T) {
	ns, other := testenv.NewT(t, "first"), testenv.NewT(t, "second")
	syncTo(t, open(t, ns, Options{Unowned: true}), sampleState())
	text := list(t, ns)

	other.NftScript(t, text)
	require.Empty(t, cmp.Diff(text, list(t, other)))
	requireHolds(t, other, sampleState())
}
