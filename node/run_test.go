// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

func TestChangesAreAnnouncedOnceAndOnlyWhenNew(t *testing.T) {
	l := newLab(t)
	r := l.follow(t)
	l.settled(t, r)
	before := r.calls.Load()
	begin := time.Now()
	const burst = 200
	for i := range burst {
		require.NoError(t, l.ns.AddAddr("up0", netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", i))))
	}
	until(t, "all addresses", burst+6, func() int { return len(r.Facts().Addresses) })
	most := int64(time.Since(begin)/(20*time.Millisecond)) + 1
	calls := r.calls.Load() - before
	t.Logf("%d events, %d calls", burst, calls)
	require.LessOrEqual(t, calls, most)
	require.Positive(t, calls)

	// Events that change no fact: none of them is announced, and the next real change still is, alone.
	calls = r.calls.Load()
	for range 3 {
		require.NoError(t, l.ns.SetMTU("up0", 1400))
		require.NoError(t, l.ns.SetRoute(testenv.Route{Dst: netip.MustParsePrefix("192.0.2.0/24"), Dev: "up1"}))
		require.NoError(t, l.ns.DelRoute(netip.MustParsePrefix("192.0.2.0/24")))
	}
	l.defaultVia(t, testenv.IPv4, 0)
	r.untilUplinks(t, "up0")
	until(t, "one call", calls+1, r.calls.Load)
}

func TestRunLeavesNothingBehind(t *testing.T) {
	l := newLab(t)
	before := runtime.NumGoroutine()
	for range 5 {
		r := l.follow(t)
		r.stop()
	}
	testenv.Eventually(t, patience, "goroutines", func() error {
		if now := runtime.NumGoroutine(); now > before {
			return fmt.Errorf("%d goroutines, %d before", now, before)
		}
		return nil
	})
}
