// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

// rules lists the rules of a priority, as "mark table".
func (l *lab) rules(t testing.TB, family, priority int) []string {
	t.Helper()
	list, err := l.nl.RuleList(family)
	require.NoError(t, err)
	var found []string
	for _, r := range list {
		if r.Priority == priority {
			found = append(found, fmt.Sprintf("%#x %d", r.Mark, r.Table))
		}
	}
	slices.Sort(found)
	return found
}

func TestTenantRulesAreKept(t *testing.T) {
	l := newLab(t)
	n := l.followWith(t, node.Options{Tenants: nat.Tenants{MarkMask: nat.DefaultTenantMarkMask}})
	// Like ours in everything but the protocol.
	foreign := netlink.NewRule()
	foreign.Priority, foreign.Mark, foreign.Table = 800, 0x990000, 99
	require.NoError(t, l.nl.RuleAdd(foreign))

	require.NoError(t, n.KeepTenantRules([]uint16{100, 200}))
	require.Equal(t, []string{"0x640000 100", "0x990000 99", "0xc80000 200"}, l.rules(t, netlink.FAMILY_V4, 800))
	require.Equal(t, []string{"0x640000 100", "0xc80000 200"}, l.rules(t, netlink.FAMILY_V6, 800))
	require.Equal(t, []string{"0x640000 0", "0xc80000 0"}, l.rules(t, netlink.FAMILY_V4, 801))

	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := l.nl.RuleList(family)
		require.NoError(t, err)
		for _, r := range list {
			if r.Priority == 801 || r.Priority == 800 && r.Table == 100 {
				r.Family = family
				require.NoError(t, l.nl.RuleDel(&r))
			}
		}
		testenv.Eventually(t, patience, "rules that others deleted come back", func() error {
			if got := len(l.rules(t, family, 801)) + len(l.rules(t, family, 800)); got < 4 {
				return fmt.Errorf("%d rules", got)
			}
			return nil
		})
	}

	require.NoError(t, n.AddTenantRules([]uint16{100, 7}))
	require.Equal(t, []string{"0x640000 100", "0x70000 7", "0xc80000 200"}, l.rules(t, netlink.FAMILY_V6, 800))
	l.settled(t, n)
	require.Equal(t, []string{"0x640000 100", "0x70000 7", "0xc80000 200"}, l.rules(t, netlink.FAMILY_V6, 800), "what is not pruned stays")
	require.NoError(t, n.KeepTenantRules([]uint16{100}))
	require.Equal(t, []string{"0x640000 100"}, l.rules(t, netlink.FAMILY_V6, 800))
	require.NoError(t, n.KeepTenantRules(nil))
	require.Equal(t, []string{"0x990000 99"}, l.rules(t, netlink.FAMILY_V4, 800), "nobody else's rule is touched")
	require.Empty(t, l.rules(t, netlink.FAMILY_V6, 801))
}
