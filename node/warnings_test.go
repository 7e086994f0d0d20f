// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

func warned(t *testing.T, n *Node, code string) []string {
	t.Helper()
	warnings, err := n.Warnings()
	require.NoError(t, err)
	var messages []string
	for _, w := range warnings {
		if w.Code == code {
			messages = append(messages, w.Message)
		}
	}
	return messages
}

func TestWarningsFollowSysctls(t *testing.T) {
	ns, peer := testenv.NewT(t, "node"), testenv.NewT(t, "peer")
	require.NoError(t, testenv.Link(testenv.Side{NS: ns, Name: "up0"}, testenv.Side{NS: peer, Name: "p0"}))
	n, err := Open(Options{NetNS: ns.FD(), Uplinks: []string{"up0"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	set := func(path, value string) {
		t.Helper()
		require.NoError(t, ns.Sysctl(path, value))
	}

	steps := []struct {
		code, path string
		good, bad  string
		message    string
	}{
		{WarnForwardingIPv4, ipv4Forward, "1", "0", "set net.ipv4.ip_forward=1"},
		{WarnForwardingIPv6, ipv6Forward, "1", "0", "set net.ipv6.conf.all.forwarding=1"},
		{WarnReversePath, rpFilter("up0"), "0", "1", "set net.ipv4.conf.up0.rp_filter=2"},
		{WarnReversePath, rpFilterAll, "2", "1", "set net.ipv4.conf.up0.rp_filter=2"},
		{WarnIPv6Disabled, disableIPv6("up0"), "0", "1", "set net.ipv6.conf.up0.disable_ipv6=0"},
		{WarnIPv6Disabled, ipv6Disable, "0", "1", "set net.ipv6.conf.all.disable_ipv6=0"},
	}
	set(rpFilterAll, "0")
	for _, step := range steps {
		set(step.path, step.good)
		require.Empty(t, warned(t, n, step.code), step.path)
		set(step.path, step.bad)
		messages := warned(t, n, step.code)
		require.Len(t, messages, 1, step.path)
		require.Contains(t, messages[0], step.message)
		set(step.path, step.good)
		require.Empty(t, warned(t, n, step.code), step.path)
	}
	// Loose on the interface wins over strict for all.
	set(rpFilterAll, "1")
	set(rpFilter("up0"), "2")
	require.Empty(t, warned(t, n, WarnReversePath))
	value, err := ns.ReadSysctl(rpFilterAll)
	require.NoError(t, err)
	require.Equal(t, "1", value, "nothing is changed")
}

func TestWarningOfAnotherName(t *testing.T) {
	ns, peer := testenv.NewT(t, "node"), testenv.NewT(t, "peer")
	require.NoError(t, testenv.Link(testenv.Side{NS: ns, Name: "up0"}, testenv.Side{NS: peer, Name: "p0"}))
	nl, err := ns.Netlink()
	require.NoError(t, err)
	link, err := nl.LinkByName("up0")
	require.NoError(t, err)
	require.NoError(t, nl.LinkAddAltName(link, "to-the-outside"))
	n, err := Open(Options{NetNS: ns.FD(), Uplinks: []string{"to-the-outside", "up0", "missing"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	messages := warned(t, n, WarnUplinkMissing)
	require.Len(t, messages, 2)
	require.Contains(t, messages[0], "there is no interface missing")
	require.Contains(t, messages[1], "another name of the interface up0: use that")
}

func TestConntrackWarnings(t *testing.T) {
	cases := map[string]struct {
		sys  sysctls
		want string
	}{
		"absent":      {sysctls{}, WarnNoConntrack},
		"no limit":    {sysctls{conntrackMax: 0, conntrackEntries: 1 << 20}, ""},
		"empty":       {sysctls{conntrackMax: 1000, conntrackEntries: 0}, ""},
		"room":        {sysctls{conntrackMax: 1000, conntrackEntries: 899}, ""},
		"almost full": {sysctls{conntrackMax: 1000, conntrackEntries: 900}, WarnConntrackFull},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := ""
			for _, w := range conntrack(c.sys) {
				got += w.Code
			}
			require.Empty(t, cmp.Diff(c.want, got))
		})
	}
}

func TestReversePathWarnings(t *testing.T) {
	vlan := "eth0.100"
	require.Contains(t, reversePath(sysctls{rpFilter(vlan): 1}, []string{vlan})[0].Message, "set net/ipv4/conf/eth0.100/rp_filter=2")
	require.Len(t, reversePath(sysctls{rpFilterAll: 1}, nil), 1)
	require.Empty(t, reversePath(sysctls{rpFilterAll: 1}, []string{"not-there"}))
	require.Empty(t, reversePath(sysctls{rpFilterAll: 2, rpFilter(vlan): 1}, []string{vlan}))
}
