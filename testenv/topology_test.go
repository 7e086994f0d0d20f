// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestBuildIsFast(t *testing.T) {
	RequireRoot(t)
	start := time.Now()
	topo, err := Build(slog.New(slog.DiscardHandler))
	took := time.Since(start)
	require.NoError(t, err)
	require.NoError(t, topo.Close())
	t.Log("built in", took)
	require.Less(t, took, 2*time.Second)
}
