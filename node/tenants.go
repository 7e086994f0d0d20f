// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// readTenants looks at the interfaces that may be tenants' and at what the operator set up for them.
func (n *Node) readTenants(uplinks []string) ([]nat.Tenant, error) {
	if n.tenants.None() {
		return nil, nil
	}
	links, err := n.route.LinkList()
	if err != nil {
		return nil, fmt.Errorf("interfaces: %w", err)
	}
	var rules [2][]netlink.Rule
	for i, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		if rules[i], err = n.readRules(family); err != nil {
			return nil, err
		}
	}
	return n.tenants.Resolve(tenantLinks(links, uplinks, rules[0], rules[1])), nil
}

// readRules is empty for a kernel without the family, or without routing rules.
func (n *Node) readRules(family int) ([]netlink.Rule, error) {
	list, err := n.route.RuleList(family)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("routing rules: %w", err)
	}
	return list, nil
}

// tenantLinks gathers what is known of each interface.
func tenantLinks(links []netlink.Link, uplinks []string, rules4, rules6 []netlink.Rule) []nat.TenantLink {
	vrfs, devices := map[int]uint32{}, map[int]string{}
	for _, l := range links {
		if vrf, ok := l.(*netlink.Vrf); ok {
			vrfs[vrf.Index], devices[vrf.Index] = vrf.Table, vrf.Name
		}
	}
	tables4, tables6 := inputTables(rules4), inputTables(rules6)
	list := make([]nat.TenantLink, 0, len(links))
	for _, l := range links {
		a := l.Attrs()
		list = append(list, nat.TenantLink{
			Name:    a.Name,
			Outside: a.Name == loopback || slices.Contains(uplinks, a.Name),
			VRF:     vrfTable(l, vrfs),
			Within:  devices[a.MasterIndex],
			Rule4:   tables4[a.Name], Rule6: tables6[a.Name],
		})
	}
	return list
}

// vrfTable is the table of the VRF that an interface is in, or is; 0 for none. Packets pass the hooks once as those of the interface, and
// once as those of the VRF.
func vrfTable(l netlink.Link, vrfs map[int]uint32) uint32 {
	a := l.Attrs()
	if slave, ok := a.Slave.(*netlink.VrfSlave); ok && slave.Table != 0 {
		return slave.Table
	}
	if table, ok := vrfs[a.Index]; ok {
		return table
	}
	return vrfs[a.MasterIndex] // a bridge or a bond is in no map
}

// inputTables is the table that the first rule for each input interface looks up.
func inputTables(rules []netlink.Rule) map[string]uint32 {
	tables, first := map[string]uint32{}, map[string]int{}
	for _, r := range rules {
		// Other actions than looking up have no table; a rule that suppresses routes leaves the rest to the ones after it.
		if r.Table <= 0 || r.Goto >= 0 || r.SuppressPrefixlen >= 0 || r.SuppressIfgroup >= 0 || r.Protocol == ruleProtocol || !forAllOf(r) {
			continue
		}
		if priority, known := first[r.IifName]; !known || r.Priority < priority {
			tables[r.IifName], first[r.IifName] = uint32(r.Table), r.Priority
		}
	}
	return tables
}

// forAllOf reports whether a rule is for everything that arrives on an interface: one with another condition says nothing about the rest.
func forAllOf(r netlink.Rule) bool {
	return r.IifName != "" && r.OifName == "" && !r.Invert && r.Src == nil && r.Dst == nil && r.Mark == 0 && r.Mask == nil &&
		r.Tos == 0 && r.TunID == 0 && r.Dport == nil && r.Sport == nil && r.IPProto == 0 && r.UIDRange == nil
}
