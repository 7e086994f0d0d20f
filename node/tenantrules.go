// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// ruleProtocol marks the routing rules that are ours (FRA_PROTOCOL, Linux 4.17). No daemon in linux/rtnetlink.h has this number.
	ruleProtocol = 111
	// rulePriority is before the rules of VRFs (1000) and of most others; a reply with our mark is for its tenant's table. The rule after it
	// keeps what that table has no route for from going on to the main table, and by it to whoever has the address there.
	rulePriority     = 800
	unreachableAfter = rulePriority + 1
	// actUnreachable is FR_ACT_UNREACHABLE of linux/fib_rules.h.
	actUnreachable = 7
)

// routingRule is what tells our rules apart.
type routingRule struct {
	priority   int
	mark, mask uint32
	table      int
}

// keptRules are the tables that replies are led to.
type keptRules struct {
	tables []uint16
	// others says whether rules of ours for other tables stay.
	others bool
}

// AddTenantRules makes the routing rules that lead replies back to the tenants with these tables. KeepTenantRules removes those of ours for
// other tables as well: when no reply carries their mark any more. Both put them right from then on while Run runs. Nobody else's rules are
// touched.
func (n *Node) AddTenantRules(tables []uint16) error {
	return n.setTenantRules(keptRules{tables, true})
}

// KeepTenantRules makes the routing rules of tenants these and no others; see AddTenantRules.
func (n *Node) KeepTenantRules(tables []uint16) error {
	return n.setTenantRules(keptRules{tables, false})
}

func (n *Node) setTenantRules(rules keptRules) error {
	n.rulesMu.Lock()
	n.rules = &rules
	n.rulesMu.Unlock()
	return n.syncTenantRules()
}

func (n *Node) syncTenantRules() error {
	// Held to the end: somebody who follows older rules must not delete a newer one.
	n.rulesMu.Lock()
	defer n.rulesMu.Unlock()
	rules := n.rules
	if rules == nil {
		return nil // another agent may be at work
	}
	want := map[routingRule]bool{}
	for _, table := range rules.tables {
		mark, mask := n.tenants.Mark(table), n.tenants.MarkMask
		want[routingRule{rulePriority, mark, mask, int(table)}] = true
		want[routingRule{unreachableAfter, mark, mask, 0}] = true
	}
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err := n.syncFamilyRules(family, want, rules.others); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *Node) syncFamilyRules(family int, want map[routingRule]bool, others bool) error {
	list, err := n.readRules(family)
	if err != nil {
		return err
	}
	missing := maps.Clone(want)
	var errs []error
	for i := range list {
		if list[i].Protocol != ruleProtocol {
			continue
		}
		have := routingRule{list[i].Priority, list[i].Mark, 0, list[i].Table}
		if list[i].Mask != nil {
			have.mask = *list[i].Mask
		}
		if missing[have] {
			delete(missing, have)
			continue
		}
		if others && !want[have] {
			continue
		}
		list[i].Family = family
		if err := n.route.RuleDel(&list[i]); err != nil && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("delete routing rule %v: %w", list[i], err))
		}
	}
	for r := range missing {
		rule := netlink.NewRule()
		rule.Family, rule.Priority, rule.Mark, rule.Mask, rule.Table, rule.Protocol = family, r.priority, r.mark, &r.mask, r.table, ruleProtocol
		if r.table == 0 {
			rule.Type = actUnreachable
		}
		if err := n.route.RuleAdd(rule); err != nil && !errors.Is(err, unix.EEXIST) {
			errs = append(errs, fmt.Errorf("add routing rule %v: %w", rule, err))
		}
	}
	return errors.Join(errs...)
}
