// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

func TestListenWorksWhileLoopbackIsDown(t *testing.T) {
	ns := testenv.NewT(t, "fresh")
	require.NoError(t, ns.SetUp("lo", false))
	for _, address := range []string{"127.0.0.1:9410", "[::1]:9410"} {
		require.NoError(t, ns.Do(func() error {
			l, err := listen(t.Context(), address)
			if err != nil {
				return err
			}
			return l.Close()
		}))
	}
	_, err := listen(t.Context(), "127.0.0.1:nonsense")
	require.ErrorContains(t, err, "--http-address 127.0.0.1:nonsense")
}
