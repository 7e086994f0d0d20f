// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const inTable = "inet " + tableName + " "

// dirt is what somebody else did to the table.
type dirt struct {
	name, script string
	// empty is true when the script meets a kernel without our table.
	empty bool
	// replaced is true when the whole table has to be written.
	replaced bool
}

func foreignLayout() []dirt {
	const established = `add rule ` + inTable + `local_guard ct state established accept comment "an established packet costs this one rule";`
	const jump = `comment "source ranges hold for the node's own processes too"`
	return []dirt{
		{name: "no table", empty: true},
		{name: "empty table", empty: true, script: "add table " + inTable},
		{name: "older layout", empty: true, script: "table " + inTable +
			"{ map whole4 { type ipv4_addr : ipv4_addr; }; chain egress_nat { type nat hook postrouting priority 90; }; }"},
		{name: "dormant", script: "add table " + inTable + "{ flags dormant; }"},
		{name: "foreign rule", script: "add rule " + inTable + "translate ip daddr 192.0.2.1 drop"},
		{name: "foreign rule first", script: "insert rule " + inTable + "leak accept"},
		{name: "rules missing", script: "flush chain " + inTable + "leak"},
		{name: "rule changed", script: "flush chain " + inTable + "local_guard;" + established +
			"add rule " + inTable + "local_guard jump leak " + jump},
		{name: "rule comment", script: "flush chain " + inTable + "local_guard;" + established +
			"add rule " + inTable + `local_guard jump source_ranges comment "x"`},
		{name: "rule without comment", script: "flush chain " + inTable + "local_guard;" + established +
			"add rule " + inTable + "local_guard jump source_ranges"},
		{name: "chain extra", script: "add chain " + inTable + "extra"},
		{name: "base chain extra", script: "add chain " + inTable + "extra { type filter hook input priority 0; }"},
		{name: "chain policy", script: "add chain " + inTable + "local_guard { policy drop; }"},
		{name: "chain priority", script: "delete chain " + inTable + "local_guard; add chain " + inTable +
			"local_guard { type filter hook output priority -119; };" + established + "add rule " + inTable + "local_guard jump source_ranges " + jump},
		{name: "set extra", script: "add set " + inTable + "extra { type ipv4_addr; }"},
		{name: "counter extra", script: "add counter " + inTable + "extra"},
		{name: "set type", empty: true, script: "add table " + inTable + "; add set " + inTable + "public4 { type ether_addr; }"},
	}
}

func foreignElements() []dirt {
	return []dirt{
		{name: "element extra", script: "add element " + inTable + "public4 { 192.0.2.99 }"},
		{name: "range extra", script: "add element " + inTable + "cluster4 { 192.0.2.0/24 }"},
		{name: "range up to the end extra", script: "add element " + inTable + "cluster6 { ff00::/8 }"},
		{name: "client extra", script: "add element " + inTable + "allowed4 { 203.0.113.10 . 198.51.100.0/24 }"},
		{name: "link extra", script: "add element " + inTable + `uplink_if { "up1" }`},
		{name: "element missing", script: "delete element " + inTable + "whole6 { 2001:db8:203::10 }"},
		{name: "range missing", script: "delete element " + inTable + "cluster4 { 10.96.0.0/16 }"},
		{name: "set empty", script: "flush set " + inTable + "shard_sources6"},
		{name: "value wrong", script: "delete element " + inTable + "whole4 { 203.0.113.10 };" +
			"add element " + inTable + `whole4 { 203.0.113.10 comment "tenant-a/vm-instance-web" : 10.9.9.9 }`},
		{name: "comment wrong", script: "delete element " + inTable + "public4 { 203.0.113.10 };" +
			"add element " + inTable + `public4 { 203.0.113.10 comment "x" }`},
		{name: "comment of a range missing", script: "delete element " + inTable + "cluster4 { 10.96.0.0/16 };" +
			"add element " + inTable + "cluster4 { 10.96.0.0/16 }"},
		{name: "range cut", script: "delete element " + inTable + "shard_sources4 { 10.0.0.0/8 };" +
			"add element " + inTable + "shard_sources4 { 10.0.0.0/9 }"},
		// Not in a form that this package writes: the set is written anew.
		{name: "range of ports", script: "add element " + inTable + "allowed_port4 { 203.0.113.20 . tcp . 100-200 . 192.0.2.0/24 }"},
		{name: "range of public addresses", script: "add element " + inTable + "allowed4 { 203.0.113.50-203.0.113.60 . 192.0.2.0/24 }"},
	}
}

// Whatever the table looks like at start, one Sync makes it right and the next writes nothing.
func TestDirtyStart(t *testing.T) {
	cases := foreignElements()
	for _, d := range foreignLayout() {
		d.replaced = true
		cases = append(cases, d)
	}
	for _, d := range cases {
		t.Run(d.name, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			table := open(t, ns, Options{Unowned: true})
			if !d.empty {
				syncTo(t, table, sampleState())
			}
			if d.script != "" {
				ns.NftScript(t, d.script)
			}
			requireRepaired(t, ns, table, d.replaced)
		})
	}
}

func requireRepaired(t *testing.T, ns *testenv.NetNS, table *Table, replaced bool) {
	t.Helper()
	result := syncTo(t, table, sampleState())
	require.Equal(t, replaced, result.Replaced, "%+v", result)
	require.NotZero(t, result.Added+result.Removed)
	requireHolds(t, ns, sampleState())
	before := generation(t, ns)
	require.Zero(t, syncTo(t, table, sampleState()))
	require.Equal(t, before, generation(t, ns))
}

// One other value in an anonymous set is another rule.
func TestDirtyAnonymousSet(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	syncTo(t, table, sampleState())
	text := ns.Nft(t, "-a", "list", "chain", "inet", tableName, ingressGuard)
	handle := regexp.MustCompile(`path MTU for one" # handle (\d+)`).FindStringSubmatch(text)
	require.NotNil(t, handle)
	replace := "replace rule " + inTable + ingressGuard + " handle " + handle[1] + " ct state related meta l4proto "
	const why = ` accept comment "an error about a tracked flow, path MTU for one"`

	ns.NftScript(t, replace+"{ ipv6-icmp, icmp }"+why)
	require.Zero(t, syncTo(t, table, sampleState()), "the same rule under a new handle")
	text = ns.Nft(t, "-a", "list", "chain", "inet", tableName, ingressGuard)
	handle = regexp.MustCompile(`path MTU for one" # handle (\d+)`).FindStringSubmatch(text)
	replace = "replace rule " + inTable + ingressGuard + " handle " + handle[1] + " ct state related meta l4proto "
	ns.NftScript(t, replace+"{ icmp, tcp }"+why)
	requireRepaired(t, ns, table, true)
}

// An upgrade that changes anything in the layout replaces the table, with all elements, in one transaction.
func TestUpgrade(t *testing.T) {
	for reason, older := range map[string]func(*layout){
		"chain leak has another rule 0":                 func(l *layout) { l.chains[len(l.chains)-1].rules[0].comment = "as it was said then" },
		"set public4 is of another kind or comment":     func(l *layout) { l.defs[public4].comment = "as it was said then" },
		"set cluster4 is of another kind or comment":    func(l *layout) { l.defs[cluster4].interval = false },
		"set restricted4 is of another kind or comment": func(l *layout) { l.defs[restricted4].value = []part{address} },
		"table has 53 objects, not 54":                  func(l *layout) { l.chains = l.chains[:len(l.chains)-2] },
	} {
		t.Run(reason, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			old := openOwned(t, ns)
			older(&old.layout)
			if len(old.layout.chains) < len(newLayout(nat.PortRange{}).chains) {
				old.layout.chains = append(old.layout.chains, chain{name: "older"})
			}
			syncTo(t, old, nat.State{})
			require.NoError(t, old.Close())

			table := open(t, ns, Options{})
			before := generation(t, ns)
			result := syncTo(t, table, sampleState())
			require.True(t, result.Replaced)
			require.Equal(t, reason, result.Reason)
			require.Equal(t, before+2, generation(t, ns), "one to own the table, one to replace it")
			requireHolds(t, ns, sampleState())
		})
	}
}
