// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

func TestProbeLeavesNothing(t *testing.T) {
	ns := testenv.NewT(t, "node")
	open(t, ns, Options{})
	require.Empty(t, ns.Nft(t, "list", "ruleset"))
}

func TestProbeNamesWhatIsMissing(t *testing.T) {
	ns := testenv.NewT(t, "node")
	c, err := dial(ns.FD())
	require.NoError(t, err)
	defer func() { require.NoError(t, c.close()) }()

	impossible := feature{"translation of thoughts", "9.9", func(c *nftables.Conn, t *nftables.Table) error {
		c.AddChain(&nftables.Chain{Name: "probe", Table: t, Type: "thoughts",
			Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter})
		return nil
	}}
	_, err = probe(c, append(features(), impossible))
	require.ErrorIs(t, err, unix.ENOENT)
	require.ErrorContains(t, err, "the kernel lacks translation of thoughts, which came with kernel 9.9")
	require.Empty(t, ns.Nft(t, "list", "ruleset"))
	_, err = probe(c, features())
	require.NoError(t, err)
}
