// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

// gcSettings returns percentage and memory limit in force.
func gcSettings() (percent int, limit int64) {
	percent = debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	return percent, debug.SetMemoryLimit(-1)
}

func keepGCSettings(t *testing.T) {
	percent, limit := gcSettings()
	t.Cleanup(func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
}

func TestRelaxedGCEndsWithTheStart(t *testing.T) {
	keepGCSettings(t)
	_, before := gcSettings()
	restore := relaxGC(40, 1<<40)
	percent, limit := gcSettings()
	require.Equal(t, startGCPercent, percent)
	require.Equal(t, int64(1<<40), limit)
	restore()
	percent, limit = gcSettings()
	require.Equal(t, 40, percent)
	require.Equal(t, before, limit)
}

// A smaller limit of the operator's holds.
func TestRelaxedGCKeepsTheOperatorsLimit(t *testing.T) {
	keepGCSettings(t)
	debug.SetMemoryLimit(1 << 39)
	restore := relaxGC(40, 1<<40)
	_, limit := gcSettings()
	require.Equal(t, int64(1<<39), limit)
	restore()
	_, limit = gcSettings()
	require.Equal(t, int64(1<<39), limit)
}

// A live heap above the limit would have the collector run all the time.
func TestLargeStartLiftsTheMemoryLimit(t *testing.T) {
	keepGCSettings(t)
	_, before := gcSettings()
	restore := relaxGC(40, 64*mib)
	heap := make([]byte, 80*mib)
	runtime.GC()
	require.Eventually(t, func() bool {
		percent, limit := gcSettings()
		return percent == largeGCPercent && limit == before
	}, 10*time.Second, liveLook)
	runtime.KeepAlive(heap)
	restore()
	percent, limit := gcSettings()
	require.Equal(t, 40, percent)
	require.Equal(t, before, limit)
}
