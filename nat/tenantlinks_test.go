// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func flags(t *testing.T, texts ...string) Tenants {
	t.Helper()
	tenants := Tenants{MarkMask: DefaultTenantMarkMask}
	for _, s := range texts {
		f, err := ParseTenant(s)
		require.NoError(t, err)
		tenants.Flags = append(tenants.Flags, f)
	}
	return tenants
}

func TestWhichFlagAnInterfaceIsOf(t *testing.T) {
	tenants := flags(t, "tenant-*=1", "tenant-a*=2", "tenant-ab=3", "t*=4")
	for name, want := range map[string]uint16{
		"tenant-": 1, "tenant-x": 1, "tenant-abc": 1, "tenant-ab": 3, "tenant": 4, "t": 4,
	} {
		f, ok := tenants.flagOf(name)
		require.True(t, ok, name)
		require.Equal(t, want, f.Table, name)
	}
	for _, name := range []string{"", "up0", "Tenant-a", "xtenant-a"} {
		_, ok := tenants.flagOf(name)
		require.False(t, ok, name)
	}
}

func TestResolveTenants(t *testing.T) {
	const unknown = "no routing table is known to lead back to it"
	cases := map[string]struct {
		flags []string
		link  TenantLink
		want  Tenant
	}{
		"a glob and a table make one tenant": {[]string{"t*=7"}, TenantLink{Name: "t0", VRF: 9, Rule4: 8}, Tenant{Table: 7}},
		"a table of its own by VRF":          {[]string{"t*"}, TenantLink{Name: "t0", VRF: 9, Rule4: 8, Rule6: 7}, Tenant{Table: 9}},
		"by rules":                           {[]string{"t*"}, TenantLink{Name: "t0", Rule4: 8, Rule6: 8}, Tenant{Table: 8}},
		"by a rule for IPv4 only":            {[]string{"t*"}, TenantLink{Name: "t0", Rule4: 8}, Tenant{Table: 8}},
		"by a rule for IPv6 only":            {[]string{"t0"}, TenantLink{Name: "t0", Rule6: 8}, Tenant{Table: 8}},
		"by nothing":                         {[]string{"t*"}, TenantLink{Name: "t0"}, Tenant{Closed: unknown}},
		"an exact name by nothing":           {[]string{"t0"}, TenantLink{Name: "t0"}, Tenant{Closed: unknown}},
		"families that disagree": {[]string{"t*"}, TenantLink{Name: "t0", Rule4: 8, Rule6: 7},
			Tenant{Closed: "routing rules name table 8 for IPv4 and table 7 for IPv6"}},
		"the main table": {[]string{"t*"}, TenantLink{Name: "t0", Rule4: 254},
			Tenant{Closed: "the routing rule for it names table 254, which is no tenant's"}},
		"a table beyond the mask": {[]string{"t*"}, TenantLink{Name: "t0", VRF: 1001},
			Tenant{Closed: "its VRF names table 1001, which does not fit into --tenant-mark-mask 0xff0000"}},
		"an uplink that a glob matches": {[]string{"t*=7"}, TenantLink{Name: "t0", Outside: true}, Tenant{Outside: true}},
		"an uplink by name":             {[]string{"t0"}, TenantLink{Name: "t0", Outside: true, Rule4: 8}, Tenant{Outside: true}},
		"an uplink by name and table":   {[]string{"t0=7"}, TenantLink{Name: "t0", Outside: true}, Tenant{Table: 7}},
		"an exact name before a glob":   {[]string{"t*=7", "t0"}, TenantLink{Name: "t0", Rule4: 8}, Tenant{Table: 8}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.want.Interface = "t0"
			require.Equal(t, []Tenant{c.want}, flags(t, c.flags...).Resolve([]TenantLink{{Name: "eth0", Rule4: 9}, c.link}))
		})
	}
	wide := Tenants{Flags: []TenantFlag{{"t*", 0}}, MarkMask: 0xffffff00}
	require.Equal(t, "its VRF names table 65536, which is above 65535", wide.Resolve([]TenantLink{{Name: "t0", VRF: 65536}})[0].Closed)
}

// Names with a table are there before their interface; tables of flags are tenants' without any.
func TestTenantsWithoutInterfaces(t *testing.T) {
	tenants := flags(t, "b=8", "a=7", "later", "t*=9", "u*")
	list := tenants.Resolve(nil)
	require.Equal(t, []Tenant{{Interface: "a", Table: 7}, {Interface: "b", Table: 8}}, list)
	require.Equal(t, []uint16{7, 8, 9}, tenants.Tables(list))
	list = tenants.Resolve([]TenantLink{{Name: "u0", Rule4: 3}, {Name: "u1", Rule6: 3}, {Name: "u2"}, {Name: "a"}})
	require.Len(t, list, 5)
	require.Equal(t, []uint16{3, 7, 8, 9}, tenants.Tables(list))
}

// The device of a VRF is its tenants', whether a flag matches it or not.
func TestTenantsInAVRF(t *testing.T) {
	links := []TenantLink{{Name: "t0", VRF: 1001, Within: "vrf"}, {Name: "t1", VRF: 1001, Within: "vrf"}, {Name: "vrf", VRF: 1001}}
	for _, c := range []struct {
		flags []string
		want  []Tenant
	}{
		{[]string{"t0=7"}, []Tenant{{Interface: "t0", Table: 7}, {Interface: "vrf", Table: 7}}},
		{[]string{"t0=7", "t1=6"}, []Tenant{{Interface: "t0", Table: 7}, {Interface: "t1", Table: 6}, {Interface: "vrf", Table: 6}}},
		{[]string{"t0=7", "v*"}, []Tenant{{Interface: "t0", Table: 7}, {Interface: "vrf", Table: 7}}},
		{[]string{"t0=7", "vrf=8"}, []Tenant{{Interface: "t0", Table: 7}, {Interface: "vrf", Table: 8}}},
		{[]string{"x*"}, nil},
	} {
		require.Equal(t, c.want, flags(t, c.flags...).Resolve(links))
	}
	closed := flags(t, "t0").Resolve(links)
	require.Len(t, closed, 1, "what is closed opens nothing")
	links[2].Outside = true
	require.Len(t, flags(t, "t0=7").Resolve(links), 1)
}

func TestTenantsChangeTheHostOnly(t *testing.T) {
	c := testConfig("node-a")
	c.Tenants = flags(t, "t*", "u*=9")
	e := NewEngine(c, nil)
	e.Apply(objects(svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10")), Facts{})
	seen := []Tenant{{Interface: "t0", Table: 7}, {Interface: "t1", Closed: "why"}}
	out := e.Apply(NewObjects(), Facts{Tenants: seen})
	require.Empty(t, out.Delta.Addresses)
	require.Empty(t, out.Verdicts)
	require.Equal(t, []uint16{7, 9}, out.Delta.Host.New.TenantTables)
	require.Equal(t, []uint16{9}, out.Delta.Host.Old.TenantTables)
	seen[1].Table = 8 // the caller's slice is its own
	out = e.Apply(NewObjects(), Facts{Tenants: seen})
	require.Equal(t, []uint16{7, 8, 9}, out.Delta.Host.New.TenantTables)
	require.True(t, e.Apply(NewObjects(), Facts{Tenants: seen}).Delta.Empty())
}

func TestKeepTenants(t *testing.T) {
	before := Host{Tenants: []Tenant{{Interface: "a", Table: 1}, {Interface: "b", Table: 2}, {Interface: "c", Table: 3}}, TenantTables: []uint16{1, 2, 3}}
	after := Host{Tenants: []Tenant{{Interface: "a", Table: 1}, {Interface: "b", Table: 3}, {Interface: "d", Table: 4}}, TenantTables: []uint16{1, 3, 4}}
	kept := before.KeepTenants(after)
	require.Equal(t, []Tenant{{Interface: "a", Table: 1}}, kept.Tenants)
	require.Equal(t, []uint16{1, 3}, kept.TenantTables)
	require.Len(t, before.Tenants, 3, "records do not change")
}
