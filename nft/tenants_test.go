// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func twoTenants() nat.Tenants {
	return nat.Tenants{MarkMask: nat.DefaultTenantMarkMask, List: []nat.Tenant{{Interface: "ta0", Table: 100}, {Interface: "tb0", Table: 200}}}
}

func keepTenants(t *testing.T, ns *testenv.NetNS, tenants nat.Tenants, owned bool) *Tenants {
	t.Helper()
	keeper := open(t, ns, Options{Unowned: !owned}).Tenants(tenants)
	t.Cleanup(func() { require.NoError(t, keeper.Close()) })
	return keeper
}

// The table is what is meant, and nft can load what it prints of it.
func TestTenantTable(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	changed, err := keepTenants(t, ns, twoTenants(), false).Sync()
	require.NoError(t, err)
	require.True(t, changed)
	got := ns.Nft(t, "list", "table", "inet", tenantTable)
	file := filepath.Join("testdata", "tenants.nft")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), got), "run the test with -update if this is meant")

	other := testenv.NewT(t, "other")
	other.NftScript(t, got)
	require.Empty(t, cmp.Diff(got, other.Nft(t, "list", "table", "inet", tenantTable)))
}

func TestTenantTableIsWrittenOnce(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	openOwned(t, testenv.NewT(t, "probe")) // skips before Linux 6.9
	sync := func(keeper *Tenants, want bool) {
		t.Helper()
		changed, err := keeper.Sync()
		require.NoError(t, err)
		require.Equal(t, want, changed)
	}
	first := keepTenants(t, ns, twoTenants(), true)
	sync(first, true)
	sync(first, false)

	second := keepTenants(t, ns, twoTenants(), true)
	_, err := second.Sync()
	require.ErrorIs(t, err, ErrOwned)
	require.NoError(t, first.Close())
	before := generation(t, ns)
	sync(second, false)
	require.Equal(t, before+1, generation(t, ns), "taking it over is all")
	require.NoError(t, second.Close())

	fewer := twoTenants()
	fewer.List = fewer.List[:1]
	third := keepTenants(t, ns, fewer, true)
	sync(third, true)
	require.NotContains(t, ns.Nft(t, "list", "table", "inet", tenantTable), "tb0")
	require.NoError(t, third.Close())

	none := keepTenants(t, ns, nat.Tenants{}, true)
	sync(none, true)
	sync(none, false)
	require.NotContains(t, ns.Nft(t, "list", "ruleset"), tenantTable)
	removed, err := none.main.RemoveTenants()
	require.NoError(t, err)
	require.False(t, removed)
}

func TestTenantTableSaysWhatTheKernelRefuses(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	bad := twoTenants()
	bad.List = append(bad.List, nat.Tenant{Interface: "ta0", Table: 300}) // two values for one key
	keeper := keepTenants(t, ns, bad, false)
	_, err := keeper.Sync()
	require.ErrorContains(t, err, tenantTable)
	keeper.tenants = twoTenants()
	changed, err := keeper.Sync()
	require.NoError(t, err)
	require.True(t, changed)
}
