// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// wide is a state of n WholeIP addresses, each with a backend of its own.
func wide(n int) nat.State {
	s := nat.State{Addresses: make([]nat.Address, n), Backends: make([]nat.Backend, n)}
	for i := range n {
		s.Addresses[i], s.Backends[i] = pair(i, 0)
	}
	return s
}

// pair is the i-th address and backend; another version has another backend address.
func pair(i, version int) (nat.Address, nat.Backend) {
	svc := owner("tenant-a", fmt.Sprintf("vm-instance-%d", i))
	public := netip.AddrFrom4([4]byte{100, byte(i >> 16), byte(i >> 8), byte(i)})
	backend := netip.AddrFrom4([4]byte{10 + byte(version), byte(i >> 16), byte(i >> 8), byte(i)})
	return nat.Address{Public: public, Owner: svc, Hosted: true, Whole: nat.Forward{Backend: backend, Owner: svc}},
		nat.Backend{Addr: backend, Owner: svc, Primary: public, PrimaryOwner: svc}
}

func TestManyElements(t *testing.T) {
	const addresses = 4000 // 5 elements each
	ns := testenv.NewT(t, "node")
	state := wide(addresses)
	table := open(t, ns, Options{})
	start := time.Now()
	require.Equal(t, 5*addresses, syncTo(t, table, state).Added)
	require.Zero(t, syncTo(t, table, state))
	require.Less(t, time.Since(start), 5*time.Second, "written and read back; 0.2 s on an idle machine")

	// Everything changes in one difference.
	next := wide(addresses)
	for i := range addresses {
		next.Addresses[i], next.Backends[i] = pair(i, 1)
	}
	result, err := table.Apply(delta(state, next))
	require.NoError(t, err)
	require.Equal(t, 3*addresses, result.Removed)
	requireHolds(t, ns, next)
}

// One machine gets another address, with ever more others beside it: the cost must not grow with them.
func BenchmarkApplyOne(b *testing.B) {
	for _, present := range []int{1, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(present), func(b *testing.B) {
			ns := testenv.NewT(b, "node")
			table := open(b, ns, Options{})
			syncTo(b, table, wide(present))
			var addresses [2]nat.Address
			var backends [2]nat.Backend
			addresses[0], backends[0] = pair(0, 0)
			addresses[1], backends[1] = pair(0, 1)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				old, new := i%2, (i+1)%2
				_, err := table.Apply(nat.Delta{
					Addresses: []nat.Change[nat.Address]{{Old: &addresses[old], New: &addresses[new]}},
					Backends:  []nat.Change[nat.Backend]{{Old: &backends[old]}, {New: &backends[new]}},
				})
				require.NoError(b, err)
			}
		})
	}
}

func BenchmarkSyncEmpty(b *testing.B) {
	for _, n := range []int{1_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			state := wide(n)
			ns := testenv.NewT(b, "node")
			table := open(b, ns, Options{})
			b.ReportAllocs()
			for b.Loop() {
				syncTo(b, table, state)
				b.StopTimer()
				require.NoError(b, table.Remove())
				b.StartTimer()
			}
		})
	}
}

func BenchmarkSyncUnchanged(b *testing.B) {
	for _, n := range []int{10, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			state := wide(n)
			ns := testenv.NewT(b, "node")
			table := open(b, ns, Options{})
			syncTo(b, table, state)
			b.ReportAllocs()
			for b.Loop() {
				syncTo(b, table, state)
			}
		})
	}
}
