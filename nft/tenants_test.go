// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// tenantFlags has a name with a table, names of one tenant, and names and a name whose tables are found.
func tenantFlags() nat.Tenants {
	return nat.Tenants{MarkMask: nat.DefaultTenantMarkMask, Flags: []nat.TenantFlag{
		{Interface: "ta0", Table: 100}, {Interface: "shared-*", Table: 7}, {Interface: "tenant-*"}, {Interface: "vlan9"},
	}}
}

// tenantHost is what those come to with some interfaces.
func tenantHost() nat.Host {
	list := tenantFlags().Resolve([]nat.TenantLink{
		{Name: "tenant-b", Rule4: 200}, {Name: "tenant-c"}, {Name: "tenant-up", Outside: true}, {Name: "tenant-v", Outside: true}, {Name: "shared-1"}, {Name: "shared-2"},
	})
	return nat.Host{Uplinks: []string{"eth0", "tenant-up"}, Tenants: list, TenantTables: tenantFlags().Tables(list), Shard: nat.Shard{
		IPv4: netip.MustParseAddr("203.0.113.200"), IPv6: netip.MustParseAddr("2001:db8:203::200"),
	}}
}

func keepTenants(t *testing.T, ns *testenv.NetNS, config nat.Tenants, owned bool) *Tenants {
	t.Helper()
	keeper := open(t, ns, Options{Unowned: !owned}).Tenants(config)
	t.Cleanup(func() { require.NoError(t, keeper.Close()) })
	return keeper
}

func requireTenants(t *testing.T, want bool, write func(nat.Host) (bool, error), h nat.Host) {
	t.Helper()
	changed, err := write(h)
	require.NoError(t, err)
	require.Equal(t, want, changed)
}

// The table is what is meant, and nft can load what it prints of it.
func TestTenantTable(t *testing.T) {
	for file, h := range map[string]nat.Host{
		"tenants.nft": tenantHost(),
		// No interface exists yet, and the shard has no address.
		"tenants_empty.nft": {},
	} {
		t.Run(file, func(t *testing.T) {
			ns := testenv.NewT(t, "tenants")
			requireTenants(t, true, keepTenants(t, ns, tenantFlags(), false).Sync, h)
			got := ns.Nft(t, "list", "table", "inet", tenantTable)
			file := filepath.Join("testdata", file)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Empty(t, cmp.Diff(string(want), got), "run the test with -update if this is meant")

			other := testenv.NewT(t, "other")
			other.NftScript(t, got)
			require.Empty(t, cmp.Diff(got, other.Nft(t, "list", "table", "inet", tenantTable)))
		})
	}
}

func TestTenantTableIsWrittenOnce(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	openOwned(t, testenv.NewT(t, "probe")) // skips before Linux 6.9
	first := keepTenants(t, ns, tenantFlags(), true)
	requireTenants(t, true, first.Sync, tenantHost())
	requireTenants(t, false, first.Sync, tenantHost())

	second := keepTenants(t, ns, tenantFlags(), true)
	_, err := second.Sync(tenantHost())
	require.ErrorIs(t, err, ErrOwned)
	require.NoError(t, first.Close())
	before := generation(t, ns)
	requireTenants(t, false, second.Sync, tenantHost())
	require.Equal(t, before+1, generation(t, ns), "taking it over is all")
	require.NoError(t, second.Close())

	fewer := tenantFlags()
	fewer.Flags = fewer.Flags[:1]
	third := keepTenants(t, ns, fewer, true)
	requireTenants(t, true, third.Sync, nat.Host{})
	require.NotContains(t, ns.Nft(t, "list", "table", "inet", tenantTable), "shared-")
	require.NoError(t, third.Close())

	none := keepTenants(t, ns, nat.Tenants{}, true)
	requireTenants(t, true, none.Sync, nat.Host{})
	requireTenants(t, false, none.Apply, nat.Host{})
	require.NotContains(t, ns.Nft(t, "list", "ruleset"), tenantTable)
	removed, err := none.main.RemoveTenants()
	require.NoError(t, err)
	require.False(t, removed)
}

// Interfaces come and go: what changes is written in one transaction, and nothing is sent without a change, also where nobody owns the table.
func TestTenantTableFollows(t *testing.T) {
	for name, owned := range map[string]bool{"owned": true, "not owned": false} {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, "tenants")
			if owned {
				openOwned(t, testenv.NewT(t, "probe"))
			}
			keeper := keepTenants(t, ns, tenantFlags(), owned)
			requireTenants(t, true, keeper.Apply, nat.Host{})
			before := generation(t, ns)
			requireTenants(t, false, keeper.Apply, nat.Host{Workloads: []string{"veth0"}})
			require.Equal(t, before, generation(t, ns))
			requireTenants(t, true, keeper.Apply, tenantHost())
			require.Equal(t, before+1, generation(t, ns))
			require.Contains(t, ns.Nft(t, "list", "chain", "inet", tenantTable, "zones"), `"tenant-b" : 200`)
			requireTenants(t, !owned, keeper.Sync, tenantHost())
		})
	}
}

func TestTenantTableSaysWhatTheKernelRefuses(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	bad := tenantHost()
	bad.Tenants = append(bad.Tenants, nat.Tenant{Interface: "ta0", Table: 7}) // two values for one key
	keeper := keepTenants(t, ns, tenantFlags(), false)
	_, err := keeper.Sync(bad)
	require.ErrorContains(t, err, tenantTable)
	requireTenants(t, true, keeper.Apply, tenantHost())
	_, err = keeper.Apply(bad)
	require.ErrorContains(t, err, tenantTable)
	requireTenants(t, true, keeper.Apply, tenantHost())
}

// A name that the other table cannot hold is not let in here.
func TestTenantsThatHaveNoElementStayOut(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	requireTenants(t, true, keepTenants(t, ns, tenantFlags(), false).Sync, nat.Host{
		Tenants: []nat.Tenant{{Interface: `tenant-"`, Table: 7}}, TenantTables: []uint16{7},
	})
	require.NotContains(t, ns.Nft(t, "list", "chain", "inet", tenantTable, "zones"), "zone set")
}

// Others may change the table where nobody owns it; the one who watches is told, but not of what the agent does itself.
func TestWatchSeesTheTableOfTenants(t *testing.T) {
	ns := testenv.NewT(t, "tenants")
	keeper := keepTenants(t, ns, tenantFlags(), false)
	await := watch(t, keeper.main)
	requireTenants(t, true, keeper.Sync, tenantHost())
	requireTenants(t, true, keeper.Apply, nat.Host{})
	for _, command := range []string{"flush chain inet natplane_tenants closed", "delete table inet natplane_tenants"} {
		require.Empty(t, keeper.main.Changed())
		ns.Nft(t, strings.Fields(command)...)
		await(command)
		requireTenants(t, true, keeper.Sync, tenantHost())
	}
}

func TestCountersOfTenants(t *testing.T) {
	keeper := keepTenants(t, testenv.NewT(t, "tenants"), tenantFlags(), false)
	counters, err := keeper.Counters()
	require.NoError(t, err)
	require.Empty(t, counters)
	requireTenants(t, true, keeper.Sync, tenantHost())
	counters, err = keeper.Counters()
	require.NoError(t, err)
	require.Contains(t, counters, Counter{Chain: "closed", Comment: "closed: give =TABLE, put it into a VRF, or ip rule add iif tenant-c lookup TABLE"})
	require.Contains(t, counters, Counter{Chain: "to_200", Comment: "of another tenant"})
}
