// SPDX-License-Identifier: Apache-2.0

package agent

import "runtime/debug"

// startGCPercent lets the heap grow to five times what lives before garbage is collected.
const startGCPercent = 400

// RelaxGC makes garbage collection rare until restore is called, which sets the given percentage (see runtime/debug.SetGCPercent) and
// returns the memory that became free. It is for a start: nearly all that a start makes lives on, so that collecting meanwhile takes a
// third of its time and finds little.
func RelaxGC(after int) (restore func()) {
	debug.SetGCPercent(startGCPercent)
	return func() {
		debug.SetGCPercent(after)
		debug.FreeOSMemory()
	}
}
