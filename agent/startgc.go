// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"time"
)

const (
	// startGCPercent lets the heap grow to five times what lives before garbage is collected, within startMemory.
	startGCPercent = 400
	// startMemory is what the garbage of a start may fill, in bytes: some 10,000 machines start within it.
	startMemory = 160 << 20
	// largeGCPercent is for a start of which more than half of that lives: garbage may be as much as what lives. The bound holds more than the
	// heap, and what it left to a heap of two thirds was no more than lived.
	largeGCPercent = 100
	// liveLook is how often the live heap is looked at; collections that change it are further apart.
	liveLook = 10 * time.Millisecond
)

// RelaxGC makes garbage collection rare until restore is called, which sets the given percentage (see runtime/debug.SetGCPercent) and
// returns the memory that became free. It is for a start: nearly all that a start makes lives on, so that collecting meanwhile takes a
// third of its time and finds little. Memory stays within startMemory as far as the live heap allows.
func RelaxGC(after int) (restore func()) { return relaxGC(after, startMemory) }

func relaxGC(after int, memory int64) (restore func()) {
	debug.SetGCPercent(startGCPercent)
	before := debug.SetMemoryLimit(-1) // GOMEMLIMIT, if any
	debug.SetMemoryLimit(min(before, memory))
	done := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		if outgrows(memory, done) {
			debug.SetGCPercent(largeGCPercent)
			debug.SetMemoryLimit(before)
		}
	})
	return sync.OnceFunc(func() {
		close(done)
		watch.Wait()
		debug.SetGCPercent(after)
		debug.SetMemoryLimit(before)
		debug.FreeOSMemory()
	})
}

// outgrows waits until the live heap comes so near to the memory that the collector would do little else than collect, or until done.
func outgrows(memory int64, done <-chan struct{}) bool {
	tick := time.NewTicker(liveLook)
	defer tick.Stop()
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	for {
		select {
		case <-done:
			return false
		case <-tick.C:
		}
		if metrics.Read(live); live[0].Value.Uint64() > uint64(memory)/2 {
			return true
		}
	}
}
