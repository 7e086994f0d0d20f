// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseTenant(t *testing.T) {
	tenant, err := ParseTenant("vlan7=100")
	require.NoError(t, err)
	require.Equal(t, Tenant{"vlan7", 100}, tenant)
	for _, s := range []string{"", "vlan7", "vlan7=", "=100", "vlan7=x", "vlan7=65536", "vlan7=-1", "sixteen-letters-=1"} {
		_, err := ParseTenant(s)
		require.ErrorContains(t, err, "INTERFACE=TABLE", s)
	}
}

func TestTenantsThatCannotWork(t *testing.T) {
	for says, tenants := range map[string]Tenants{
		"":                       {List: []Tenant{{"a", 100}, {"b", 100}, {"c", 252}}, MarkMask: DefaultTenantMarkMask},
		"given twice":            {List: []Tenant{{"a", 100}, {"a", 101}}, MarkMask: DefaultTenantMarkMask},
		"254 is no tenant's":     {List: []Tenant{{"a", 254}}, MarkMask: DefaultTenantMarkMask},
		"0 is no tenant's":       {List: []Tenant{{"a", 0}}, MarkMask: DefaultTenantMarkMask},
		"does not fit into":      {List: []Tenant{{"a", 256}}, MarkMask: DefaultTenantMarkMask},
		"not next to each other": {List: []Tenant{{"a", 1}}, MarkMask: 0x00f0f000},
		"--tenant-mark-mask 0x0": {List: []Tenant{{"a", 1}}},
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
