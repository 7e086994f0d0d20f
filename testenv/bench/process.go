// SPDX-License-Identifier: Apache-2.0

package main

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// processTime is the processor time of this process, in the kernel and outside.
func processTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // only for wrong arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heapWatch looks at the heap every few milliseconds.
type heapWatch struct {
	before, peak uint64
	quit         chan struct{}
	work         sync.WaitGroup
}

func watchHeap() *heapWatch {
	w := &heapWatch{before: heapNow(), quit: make(chan struct{})}
	w.work.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			w.peak = max(w.peak, heapNow())
			select {
			case <-w.quit:
				return
			case <-tick.C:
			}
		}
	})
	return w
}

// growth ends the watch and returns by how many bytes the heap grew, with the garbage that was not collected yet.
func (w *heapWatch) growth() uint64 {
	close(w.quit)
	w.work.Wait()
	return max(w.peak, w.before) - w.before
}

func heapNow() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
