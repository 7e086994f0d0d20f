// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// heapPeak samples the heap until stop is called and returns how far it grew.
func heapPeak() (stop func() uint64) {
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var peak atomic.Uint64
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			runtime.ReadMemStats(&now)
			peak.Store(max(peak.Load(), now.HeapAlloc))
			select {
			case <-quit:
				return
			case <-tick.C:
			}
		}
	}()
	return func() uint64 {
		close(quit)
		<-done
		return peak.Load() - min(peak.Load(), before.HeapAlloc)
	}
}

// cpuTime is what the process has used, in the kernel and outside. Unlike the
// time on the clock it says something on a busy machine too.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkAudit measures from Commit until the stale flows are gone, with
// 200,000 flows of 10,000 addresses. extra-MB is what the heap grew by.
func BenchmarkAudit(b *testing.B) {
	const flows = 200_000
	for _, family := range []Family{IPv4, IPv6} {
		for _, changed := range []int{1, 1000} {
			b.Run(fmt.Sprintf("IPv%d/changed=%d", 2+2*family, changed), func(b *testing.B) {
				n := openKernel(b)
				state := crowdState(family)
				fill(b, n, crowd(family, flows))
				a := NewAuditor(n, Config{SecondLook: -1})
				ctx, cancel := context.WithCancel(b.Context())
				done := make(chan struct{})
				go func() { defer close(done); a.Run(ctx) }()
				// The first search of a process includes the probe.
				a.Reset(state, Look{Addresses: []netip.Addr{state.Addresses[0].Public}})
				require.NoError(b, a.Wait(ctx))
				var peak uint64
				var cpu time.Duration
				deleted := a.Stats().Deleted
				for b.Loop() {
					stop, used := heapPeak(), cpuTime(b)
					a.Commit(removal(state, changed))
					require.NoError(b, a.Wait(ctx))
					cpu += cpuTime(b) - used
					peak = max(peak, stop())
					b.StopTimer()
					require.Equal(b, changed*flows/10_000, a.Stats().Deleted-deleted)
					deleted = a.Stats().Deleted
					a.Reset(state, Look{})
					var again []Flow
					for i, f := range crowd(family, flows) {
						if i%10_000 < changed {
							again = append(again, f)
						}
					}
					fill(b, n, again)
					b.StartTimer()
				}
				b.ReportMetric(float64(peak)/(1<<20), "extra-MB")
				b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
				cancel()
				<-done
			})
		}
	}
}

func BenchmarkJudge(b *testing.B) {
	x, f := NewIndex(crowdState(IPv4)), crowd(IPv4, 1)[0]
	for b.Loop() {
		x.Judge(f, nil)
	}
}

func BenchmarkDecode(b *testing.B) {
	m, err := createRequest(crowd(IPv4, 1)[0], flowTimeout)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		_, err := decodeFlow(m)
		require.NoError(b, err)
	}
}
