// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTenant(t *testing.T) {
	for s, want := range map[string]TenantFlag{
		"vlan7=100":       {"vlan7", 100},
		"vlan7":           {"vlan7", 0},
		"tenant-*":        {"tenant-*", 0},
		"t*=65535":        {"t*", 65535},
		"fifteen-letter*": {"fifteen-letter*", 0},
	} {
		got, err := ParseTenant(s)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, s, got.String())
	}
	for s, says := range map[string]string{
		"":                    "is no name of an interface",
		"=100":                "is no name of an interface",
		"sixteen-letters-":    "is no name of an interface",
		"sixteen-letters-*":   "is no name of an interface",
		"sixteen-letters-=1":  "is no name of an interface",
		"a b":                 "is no name of an interface",
		"vlan7=":              "INTERFACE=TABLE",
		"vlan7=0":             "INTERFACE=TABLE",
		"vlan7=x":             "INTERFACE=TABLE",
		"vlan7=65536":         "INTERFACE=TABLE",
		"vlan7=-1":            "INTERFACE=TABLE",
		"vlan7=100=100":       "INTERFACE=TABLE",
		"*":                   "only a * at the end",
		"*=7":                 "only a * at the end",
		"t*nant":              "only a * at the end",
		"tenant-?":            "only a * at the end",
		"tenant-[ab]":         "only a * at the end",
		"tenant-**":           "only a * at the end",
		"tenant-*,uplink=100": "only a * at the end",
	} {
		_, err := ParseTenant(s)
		require.ErrorContains(t, err, says, s)
	}
}

func TestTenantsThatCannotWork(t *testing.T) {
	for says, tenants := range map[string]Tenants{
		"":                       {Flags: []TenantFlag{{"a", 100}, {"b", 100}, {"c", 252}, {"d", 0}, {"a*", 0}}, MarkMask: DefaultTenantMarkMask},
		"a is given twice":       {Flags: []TenantFlag{{"a", 100}, {"a", 101}}, MarkMask: DefaultTenantMarkMask},
		"a* is given twice":      {Flags: []TenantFlag{{"a*", 0}, {"a*", 101}}, MarkMask: DefaultTenantMarkMask},
		"254 is no tenant's":     {Flags: []TenantFlag{{"a", 254}}, MarkMask: DefaultTenantMarkMask},
		"does not fit into":      {Flags: []TenantFlag{{"a", 256}}, MarkMask: DefaultTenantMarkMask},
		"only a * at the end":    {Flags: []TenantFlag{{"*", 0}}, MarkMask: DefaultTenantMarkMask},
		"not next to each other": {Flags: []TenantFlag{{"a", 1}}, MarkMask: 0x00f0f000},
		"--tenant-mark-mask 0x0": {Flags: []TenantFlag{{"a", 1}}},
	} {
		err := Config{Node: "n", ProxyNames: DefaultProxyNames(), Tenants: tenants}.Validate()
		if says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorContains(t, err, says)
	}
	require.EqualValues(t, 0x640000, Tenants{MarkMask: DefaultTenantMarkMask}.Mark(100))
}
