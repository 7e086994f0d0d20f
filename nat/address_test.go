// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseAddress(t *testing.T) {
	for _, good := range []string{"10.0.0.10", "203.0.113.10", "0.0.0.1", "255.255.255.254", "126.255.255.255", "128.0.0.1", "169.253.255.255",
		"169.255.0.0", "223.255.255.255", "240.0.0.1", "2001:db8::1", "fd00::10", "fe7f::1", "fec0::1", "64:ff9b::1", "2001:DB8::A"} {
		a, err := ParseAddress(good)
		require.NoError(t, err, good)
		require.Equal(t, addr(good), a)
	}
	for _, bad := range badAddresses() {
		a, err := ParseAddress(bad)
		require.Error(t, err, "%q", bad)
		require.False(t, a.IsValid(), "%q", bad)
	}
}

func TestParseAddressSaysWhy(t *testing.T) {
	for bad, why := range map[string]error{
		"": errEmpty, "::ffff:10.0.0.10": errMapped, "fe80::1%eth0": errZone, "::": errUnspecified, "0.0.0.0": errUnspecified, "127.9.9.9": errLoopback,
		"::1": errLoopback, "fe80::1": errLinkLocal, "169.254.169.254": errLinkLocal, "ff02::1": errMulticast, "224.0.0.1": errMulticast,
		"255.255.255.255": errBroadcast,
	} {
		_, err := ParseAddress(bad)
		require.ErrorIs(t, err, why, "%q", bad)
	}
}

func TestValidateNamesEveryField(t *testing.T) {
	require.NoError(t, testConfig("node-a").Validate())
	all := testConfig("node-a")
	all.ClusterCIDRs, all.PublicCIDRs, all.MasqueradeCIDRs, all.ShardCIDRs = prefixes("10.0.0.0/8"), prefixes("::/0"), prefixes("10.0.0.1/8"), DefaultShardCIDRs()
	require.NoError(t, all.Validate())
	bad := Config{
		ProxyNames: []string{"ok", ""}, ClusterCIDRs: prefixes("::ffff:10.0.0.0/104"), PublicCIDRs: prefixes("::ffff:10.0.0.0/104"),
		MasqueradeCIDRs: prefixes("::ffff:10.0.0.0/104"), ShardCIDRs: prefixes("::ffff:10.0.0.0/104"),
	}
	err := bad.Validate()
	for _, part := range []string{"--node-name", "empty proxy name", "--cluster-cidr", "--public-cidr", "--masquerade-source-cidr", "--shard-source-cidr"} {
		require.ErrorContains(t, err, part)
	}
	require.ErrorContains(t, Config{Node: "node-a"}.Validate(), "no proxy name")
	for range 20 {
		require.Equal(t, err.Error(), bad.Validate().Error(), "the same text every time")
	}
}

func TestProtocolNames(t *testing.T) {
	require.Equal(t, []string{"TCP", "UDP", "SCTP", "unknown"}, []string{TCP.String(), UDP.String(), SCTP.String(), Protocol(1).String()})
}
