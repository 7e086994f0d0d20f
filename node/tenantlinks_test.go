// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/nat"
)

func named(index, master int, name string, slave netlink.LinkSlave) netlink.LinkAttrs {
	return netlink.LinkAttrs{Index: index, MasterIndex: master, Name: name, Slave: slave}
}

// The table of a VRF is that of each interface in it, as the kernel says it of the interface or of the VRF.
func TestTenantLinksInVRFs(t *testing.T) {
	links := []netlink.Link{
		&netlink.Dummy{LinkAttrs: named(1, 0, "lo", nil)},
		&netlink.Dummy{LinkAttrs: named(2, 9, "by-slave", &netlink.VrfSlave{Table: 10})},
		&netlink.Veth{LinkAttrs: named(3, 9, "by-master", nil)},
		&netlink.Veth{LinkAttrs: named(4, 8, "in-bridge", nil)},
		&netlink.Bridge{LinkAttrs: named(8, 0, "bridge", nil)},
		&netlink.Vrf{LinkAttrs: named(9, 0, "vrf", nil), Table: 11},
		&netlink.Veth{LinkAttrs: named(10, 0, "plain", nil)},
	}
	rules := []netlink.Rule{*inputRule("plain", 5, 7), *inputRule("by-master", 5, 8)}
	require.Equal(t, []nat.TenantLink{
		{Name: "lo", Outside: true},
		{Name: "by-slave", VRF: 10, Within: "vrf"},
		{Name: "by-master", VRF: 11, Within: "vrf", Rule4: 8},
		{Name: "in-bridge"},
		{Name: "bridge", Outside: true},
		{Name: "vrf", VRF: 11},
		{Name: "plain", Rule4: 7},
	}, tenantLinks(links, []string{"bridge"}, rules, nil))
}

func inputRule(iif string, priority, table int, edits ...func(*netlink.Rule)) *netlink.Rule {
	r := netlink.NewRule()
	r.IifName, r.Priority, r.Table = iif, priority, table
	for _, edit := range edits {
		edit(r)
	}
	return r
}

func TestInputTables(t *testing.T) {
	var list []netlink.Rule
	for _, r := range []*netlink.Rule{
		inputRule("a", 20, 2), inputRule("a", 10, 1), inputRule("a", 30, 3),
		inputRule("", 1, 9),
		inputRule("b", 5, 9, func(r *netlink.Rule) { r.Invert = true }),
		inputRule("b", 6, 0, func(r *netlink.Rule) { r.Type = actUnreachable }),
		inputRule("b", 7, 254, func(r *netlink.Rule) { r.SuppressPrefixlen = 0 }),
		inputRule("b", 8, 254, func(r *netlink.Rule) { r.SuppressIfgroup = 1 }),
		inputRule("b", 9, 0, func(r *netlink.Rule) { r.Goto = 100 }),
		inputRule("b", 10, 9, func(r *netlink.Rule) { r.Protocol = ruleProtocol }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { _, r.Src, _ = net.ParseCIDR("10.0.0.0/8") }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { _, r.Dst, _ = net.ParseCIDR("10.0.0.0/8") }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { r.Mark = 7 }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { r.Dport = netlink.NewRulePortRange(53, 53) }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { r.IPProto = 6 }),
		inputRule("b", 1, 9, func(r *netlink.Rule) { r.OifName = "up0" }),
		inputRule("b", 11, 4),
	} {
		list = append(list, *r)
	}
	require.Equal(t, map[string]uint32{"a": 1, "b": 4}, inputTables(list))
}

func TestTenantWarnings(t *testing.T) {
	list := tenants([]nat.Tenant{
		{Interface: "a", Table: 7}, {Interface: "b", Closed: "no routing table is known to lead back to it"},
		{Interface: "lo", Outside: true}, {Interface: "up", Outside: true},
	})
	require.Len(t, list, 2)
	require.Equal(t, WarnTenantClosed, list[0].Code)
	for _, part := range []string{"b is closed", "no routing table", "--tenant-interface b=TABLE", "a VRF", "`ip rule add iif b lookup TABLE`"} {
		require.Contains(t, list[0].Message, part)
	}
	require.Equal(t, WarnTenantUplink, list[1].Code)
	require.Contains(t, list[1].Message, "up is an uplink")
}
