// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func rangesV4() map[string][]nat.Range {
	return map[string][]nat.Range{
		"all":           {span("0.0.0.0/0")},
		"all but edges": {span("0.0.0.1", "255.255.255.254")},
		"both edges":    {span("0.0.0.0/32"), span("255.255.255.255/32")},
		"upper half":    {span("128.0.0.0/1")},
		"to the end":    {span("10.0.0.0/8"), span("250.1.2.3", "255.255.255.255")},
		"from zero":     {span("0.0.0.0", "0.0.0.7"), span("10.0.0.0/8")},
		"adjacent":      {span("10.0.0.0/24"), span("10.0.1.0", "10.0.1.7"), span("10.0.1.8/32"), span("10.0.1.9/32")},
		"arbitrary":     {span("192.0.2.3", "192.0.2.77"), span("198.51.100.9", "203.0.113.1")},
		"one":           {span("192.0.2.1/32")},
	}
}

func rangesV6() map[string][]nat.Range {
	return map[string][]nat.Range{
		"all":           {span("::/0")},
		"all but edges": {span("::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe")},
		"both edges":    {span("::/128"), span("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")},
		"to the end":    {span("fc00::/7"), span("ff00::/8")},
		"adjacent":      {span("2001:db8::/64"), span("2001:db8:0:1::/64"), span("2001:db8:0:2::", "2001:db8:0:2::5")},
		"one":           {span("2001:db8::1/128")},
	}
}

// Every form of range can be written, is read back as what it was, carries its comment, and goes away again.
func TestRanges(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	empty := nat.State{Addresses: []nat.Address{{Public: ip("203.0.113.1")}, {Public: ip("2001:db8::9")}}}
	syncTo(t, table, empty)
	for name, v4 := range rangesV4() {
		v6, ok := rangesV6()[name]
		if !ok {
			v6 = rangesV6()["all"]
		}
		t.Run(name, func(t *testing.T) {
			state := rangeState(v4, v6)
			_, err := table.Apply(delta(empty, state))
			require.NoError(t, err)
			requireHolds(t, ns, state)
			before := generation(t, ns)
			require.Zero(t, syncTo(t, table, state))
			require.Equal(t, before, generation(t, ns))

			// Only the comments change.
			again := rangeState(v4, v6)
			for i := range again.Host.Cluster {
				again.Host.Cluster[i].Reason = "another reason"
			}
			_, err = table.Apply(delta(state, again))
			require.NoError(t, err)
			requireHolds(t, ns, again)

			_, err = table.Apply(delta(again, empty))
			require.NoError(t, err)
			requireHolds(t, ns, empty)
		})
	}
}

// rangeState uses the ranges in every kind of set that takes them.
func rangeState(v4, v6 []nat.Range) nat.State {
	svc := owner("ns", "svc")
	var ranges []nat.NamedRange
	for _, r := range append(append([]nat.Range(nil), v4...), v6...) {
		ranges = append(ranges, named("because", r))
	}
	return nat.State{
		Addresses: []nat.Address{
			{Public: ip("203.0.113.1"), Whole: nat.Forward{Backend: ip("10.0.0.1"), Owner: svc, Sources: only(v4...)}},
			{Public: ip("2001:db8::9"), Echo: nat.Forward{Backend: ip("fd00::1"), Owner: svc, Sources: only(v6...)},
				Ports: []nat.Port{{Protocol: nat.UDP, Port: 65535, Target: target("[fd00::1]:1"), Owner: svc, Sources: only(v6...)}}},
		},
		Host: nat.Host{Cluster: ranges, Masquerade: ranges, ShardSources: ranges},
	}
}

// A set moves from any set of ranges to any other with differences alone.
func TestRangesChange(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	old := nat.State{}
	syncTo(t, table, old)
	for _, from := range rangesV4() {
		for _, to := range rangesV4() {
			for _, ranges := range [][]nat.Range{from, to} {
				new := rangeState(ranges, nil)
				_, err := table.Apply(delta(old, new))
				require.NoError(t, err, "to %v", ranges)
				requireHolds(t, ns, new)
				old = new
			}
		}
	}
}

// nft reads what we write as what it is: the last address and open ends included.
func TestRangesInNft(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	syncTo(t, table, rangeState(
		[]nat.Range{span("10.0.0.0/24"), span("10.0.1.0", "10.0.1.9"), span("240.0.0.0/4")},
		[]nat.Range{span("::/1"), span("fc00::/7"), span("ffff::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")}))
	v4 := ns.Nft(t, "list", "set", "inet", tableName, "cluster4")
	for _, want := range []string{`10.0.0.0/24 comment "because"`, `10.0.1.0-10.0.1.9 comment "because"`, `240.0.0.0/4 comment "because"`} {
		require.Contains(t, v4, want)
	}
	v6 := ns.Nft(t, "list", "set", "inet", tableName, "cluster6")
	for _, want := range []string{`::/1 comment "because"`, `fc00::/7 comment "because"`, `ffff::/16 comment "because"`} {
		require.Contains(t, v6, want)
	}
	require.Contains(t, ns.Nft(t, "list", "set", "inet", tableName, "allowed4"), "203.0.113.1 . 240.0.0.0/4")
	require.Contains(t, ns.Nft(t, "list", "set", "inet", tableName, "allowed_port6"), "2001:db8::9 . udp . 65535 . ffff::/16")
	ns.Nft(t, "get", "element", "inet", tableName, "cluster4", "{ 255.255.255.255 }")
}
