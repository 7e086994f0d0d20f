// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

func TestLockIsOfTheNamespace(t *testing.T) {
	here, elsewhere := testenv.NewT(t, "here"), testenv.NewT(t, "elsewhere")
	open := func(ns *testenv.NetNS) *Node {
		n, err := Open(Options{NetNS: ns.FD()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		return n
	}
	first, second, other := open(here), open(here), open(elsewhere)

	lock, err := first.Lock()
	require.NoError(t, err)
	_, err = second.Lock()
	require.ErrorIs(t, err, ErrLocked)
	free, err := other.Lock()
	require.NoError(t, err, "another node has a lock of its own")
	require.NoError(t, free.Close())

	require.NoError(t, lock.Close())
	lock, err = second.Lock()
	require.NoError(t, err, "the lock ends with its holder")
	require.NoError(t, lock.Close())
}
