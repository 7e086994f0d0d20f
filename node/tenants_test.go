// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

// inputRule adds or deletes the rule that an operator has for the way out.
func (l *lab) inputRule(t testing.TB, change func(*netlink.Rule) error, family int, iif string, priority, table int) {
	t.Helper()
	r := netlink.NewRule()
	r.Family, r.IifName, r.Priority, r.Table = family, iif, priority, table
	require.NoError(t, change(r))
}

func (l *lab) addLink(t testing.TB, name string) {
	t.Helper()
	require.NoError(t, testenv.Link(testenv.Side{NS: l.ns, Name: name}, testenv.Side{NS: l.peer, Name: "p-" + name}))
}

func tenantOptions() node.Options {
	return node.Options{Tenants: nat.Tenants{MarkMask: nat.DefaultTenantMarkMask, Flags: []nat.TenantFlag{
		{Interface: "tenant-*"}, {Interface: "up*", Table: 9}, {Interface: "later", Table: 5},
	}}}
}

func (r *running) untilTenants(t testing.TB, want ...nat.Tenant) {
	t.Helper()
	until(t, "tenants", want, func() []nat.Tenant { return r.Facts().Tenants })
}

// Each step brings its own event: interfaces and rules come and go.
func TestTenantsFollowInterfacesAndRules(t *testing.T) {
	const unknown = "no routing table is known to lead back to it"
	l := newLab(t)
	l.defaultVia(t, testenv.IPv4, 0)
	r := l.followWith(t, tenantOptions())
	rest := []nat.Tenant{{Interface: "up0", Outside: true}, {Interface: "up1", Table: 9}, {Interface: "up2", Table: 9}}
	expect := func(tenant ...nat.Tenant) {
		t.Helper()
		r.untilTenants(t, append(append([]nat.Tenant{{Interface: "later", Table: 5}}, tenant...), rest...)...)
		l.settled(t, r)
	}
	expect()
	l.addLink(t, "tenant-a")
	expect(nat.Tenant{Interface: "tenant-a", Closed: unknown})
	require.Len(t, codes(t, r.Node, node.WarnTenantClosed), 1)
	calls := r.calls.Load()
	l.inputRule(t, l.nl.RuleAdd, netlink.FAMILY_V6, "tenant-a", 200, 70)
	expect(nat.Tenant{Interface: "tenant-a", Table: 70})
	require.Greater(t, r.calls.Load(), calls, "the owner is told")
	require.Empty(t, codes(t, r.Node, node.WarnTenantClosed))
	l.inputRule(t, l.nl.RuleAdd, netlink.FAMILY_V4, "tenant-a", 200, 71)
	expect(nat.Tenant{Interface: "tenant-a", Closed: "routing rules name table 71 for IPv4 and table 70 for IPv6"})
	l.inputRule(t, l.nl.RuleAdd, netlink.FAMILY_V4, "tenant-a", 100, 70)
	expect(nat.Tenant{Interface: "tenant-a", Table: 70})
	l.inputRule(t, l.nl.RuleDel, netlink.FAMILY_V6, "tenant-a", 200, 70)
	l.inputRule(t, l.nl.RuleDel, netlink.FAMILY_V4, "tenant-a", 100, 70)
	expect(nat.Tenant{Interface: "tenant-a", Table: 71})
	// Rules of an interface that does not exist yet wait for it, and stay behind.
	l.inputRule(t, l.nl.RuleAdd, netlink.FAMILY_V4, "tenant-b", 200, 1000)
	require.NoError(t, l.ns.DelLink("tenant-a"))
	expect()
	l.addLink(t, "tenant-b")
	expect(nat.Tenant{Interface: "tenant-b", Closed: "the routing rule for it names table 1000, which does not fit into --tenant-mark-mask 0xff0000"})
	l.addLink(t, "tenant-a")
	expect(nat.Tenant{Interface: "tenant-a", Table: 71},
		nat.Tenant{Interface: "tenant-b", Closed: "the routing rule for it names table 1000, which does not fit into --tenant-mark-mask 0xff0000"})
	l.defaultVia(t, testenv.IPv4, 1)
	rest[0], rest[1] = nat.Tenant{Interface: "up0", Table: 9}, nat.Tenant{Interface: "up1", Outside: true}
	expect(nat.Tenant{Interface: "tenant-a", Table: 71},
		nat.Tenant{Interface: "tenant-b", Closed: "the routing rule for it names table 1000, which does not fit into --tenant-mark-mask 0xff0000"})
}

// The mark rules that the agent adds are no operator's: they name no tenant, and nothing is announced for them.
func TestOwnRulesNameNoTenant(t *testing.T) {
	l := newLab(t)
	l.addLink(t, "tenant-a")
	r := l.followWith(t, tenantOptions())
	l.settled(t, r)
	before := r.Facts()
	require.NoError(t, r.KeepTenantRules([]uint16{5, 9}))
	l.settled(t, r)
	require.True(t, before.Equal(r.Facts()))
}

func TestWithoutFlagsThereAreNoTenants(t *testing.T) {
	l := newLab(t)
	l.addLink(t, "tenant-a")
	require.Nil(t, l.open(t).Facts().Tenants)
}
