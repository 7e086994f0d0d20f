// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
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

// KeepTenantRules makes the routing rules that lead replies back to tenants, removes those of ours that are no longer wanted, and puts them
// right from then on while Run runs. Nobody else's rules are touched.
func (n *Node) KeepTenantRules(t nat.Tenants) error {
	n.mu.Lock()
	n.tenants = &t
	n.mu.Unlock()
	return n.syncTenantRules()
}

func (n *Node) syncTenantRules() error {
	n.mu.Lock()
	tenants := n.tenants
	n.mu.Unlock()
	if tenants == nil {
		return nil // another agent may be at work
	}
	want := map[routingRule]bool{}
	for _, table := range tenants.Tables() {
		mark := tenants.Mark(table)
		want[routingRule{rulePriority, mark, tenants.MarkMask, int(table)}] = true
		want[routingRule{unreachableAfter, mark, tenants.MarkMask, 0}] = true
	}
	var errs []error
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if err := n.syncFamilyRules(family, want); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (n *Node) syncFamilyRules(family int, want map[routingRule]bool) error {
	list, err := n.route.RuleList(family)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil // a kernel without IPv6, or without routing rules
	}
	if err != nil {
		return fmt.Errorf("routing rules: %w", err)
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
