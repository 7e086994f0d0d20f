// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// audit runs f with an auditor at work, in fake time.
func audit(t *testing.T, table *fakeTable, f func(t *testing.T, a *Auditor, log *bytes.Buffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		log := new(bytes.Buffer)
		a := NewAuditor(table, Config{Log: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		f(t, a, log)
		cancel()
		<-done
	})
}

// elapse lets fake time pass, and what is due then be done.
func elapse(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// withoutWeb is the state after machine web has lost its addresses.
func withoutWeb(w world) nat.State {
	s := w.state()
	s.Addresses, s.Backends = s.Addresses[2:], s.Backends[1:]
	return s
}

func inbound(w world, n int) []Flow {
	var list []Flow
	for i := range n {
		list = append(list, w.flow(fmt.Sprintf("udp 192.0.2.1:%[1]d 203.0.113.10:80 10.244.1.10:80 192.0.2.1:%[1]d", i+1)))
	}
	return list
}

func TestCommitCutsWhatTheChangeMadeStale(t *testing.T) {
	eachFamily(t, func(t *testing.T, w world) {
		keep := w.flow("tcp 192.0.2.1:4000 203.0.113.20:22 10.244.1.20:22 192.0.2.1:4000")
		table := new(fakeTable)
		table.insert(append(inbound(w, 3), keep)...)
		audit(t, table, func(t *testing.T, a *Auditor, log *bytes.Buffer) {
			a.Reset(w.state(), Look{Everything: true})
			require.NoError(t, a.Wait(t.Context()))
			require.Len(t, table.list(), 4)
			require.Empty(t, log.String(), "nothing changed, nothing to say")

			a.Commit(deltaOf(w.state(), withoutWeb(w)))
			require.NoError(t, a.Wait(t.Context()))
			require.Len(t, table.list(), 1)
			require.Equal(t, keep.Orig, table.list()[0].Orig)
			require.Equal(t, 3, a.Stats().Deleted)
			require.Contains(t, log.String(), `reasons="released=3"`)
		})
	})
}

func TestCommitDoesNotWait(t *testing.T) {
	w, table, hold := world(IPv4), new(fakeTable), make(chan struct{})
	table.insert(inbound(w, 3)...)
	table.during = func() { <-hold }
	audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
		start := time.Now()
		for range 10 {
			a.Commit(deltaOf(w.state(), withoutWeb(w)))
			a.Commit(deltaOf(withoutWeb(w), w.state()))
		}
		require.Zero(t, time.Since(start))
		close(hold)
		require.NoError(t, a.Wait(t.Context()))
		require.Less(t, a.Stats().Passes, 4, "not coalesced")
	})
}

// A commit in the middle of a pass: what the new state creates is not deleted,
// and its own targets are looked at again.
func TestCommitDuringPass(t *testing.T) {
	w, table := world(IPv4), new(fakeTable)
	table.insert(inbound(w, 4)...)
	audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
		a.Reset(withoutWeb(w), Look{})
		back := deltaOf(withoutWeb(w), w.state())
		table.during = func() {
			table.during = nil
			a.Commit(back)
		}
		a.Reset(withoutWeb(w), Look{Addresses: w.addrs("203.0.113.10")})
		require.NoError(t, a.Wait(t.Context()))
		require.Len(t, table.list(), 4)
	})
}

// What the pass has gone by before the commit is looked at again.
func TestCommitBehindThePass(t *testing.T) {
	w, table := world(IPv4), new(fakeTable)
	table.insert(inbound(w, 4)...)
	audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
		table.during = func() {
			if len(table.dumps) == 2 { // the second search; the first has found all flows legal
				a.Commit(deltaOf(w.state(), withoutWeb(w)))
			}
		}
		a.Reset(w.state(), Look{Addresses: w.addrs("203.0.113.10")})
		require.NoError(t, a.Wait(t.Context()))
		require.Empty(t, table.list())
	})
}

func TestRefusedDeletionsAreRetried(t *testing.T) {
	for _, flows := range []int{10, 2000} {
		w, table, allowed := world(IPv4), new(fakeTable), false
		table.insert(inbound(w, flows)...)
		table.refuse = func(f Flow) error {
			if f.ID%2 == 0 && !allowed {
				return unix.EPERM
			}
			return nil
		}
		audit(t, table, func(t *testing.T, a *Auditor, log *bytes.Buffer) {
			a.Reset(w.state(), Look{})
			a.Commit(deltaOf(w.state(), withoutWeb(w)))
			elapse(3 * time.Second)
			require.Len(t, table.list(), flows/2, "the others are not held up")
			s := a.Stats()
			require.Positive(t, s.Pending)
			require.ErrorIs(t, s.LastError, unix.EPERM)
			require.Greater(t, s.FailedPasses, 2)
			require.Less(t, s.FailedPasses, 10, "the wait grows")
			require.False(t, s.OldestPending.IsZero())
			require.Less(t, log.Len(), 10_000, "errors are not hoarded")
			require.LessOrEqual(t, table.largest, reapAt)

			table.mu.Lock()
			allowed = true
			table.mu.Unlock()
			require.NoError(t, a.Wait(t.Context()))
			require.Empty(t, table.list())
			require.Zero(t, a.Stats().Pending)
			require.NoError(t, a.Stats().LastError)
		})
	}
}

func TestInterruptedDumpIsNotComplete(t *testing.T) {
	for _, noFilter := range []bool{false, true} {
		w, table, broken := world(IPv4), &fakeTable{noFilter: noFilter}, 12
		table.insert(inbound(w, 4)...)
		table.breakDump = func(Query) error {
			if broken--; broken >= 0 {
				return ErrInterrupted
			}
			return nil
		}
		audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
			a.Reset(w.state(), Look{})
			a.Commit(deltaOf(w.state(), withoutWeb(w)))
			synctest.Wait()
			require.ErrorIs(t, a.Stats().LastError, ErrInterrupted)
			require.Positive(t, a.Stats().Pending)
			require.NoError(t, a.Wait(t.Context()))
			require.Empty(t, table.list())
		})
	}
}

// One target that cannot be searched does not keep the others from being done.
func TestFailureConcernsOneTarget(t *testing.T) {
	w, table := world(IPv4), new(fakeTable)
	table.insert(inbound(w, 4)...)
	table.insert(w.flow("tcp 192.0.2.1:4000 203.0.113.11:443 10.244.1.10:8443 192.0.2.1:4000"))
	dead := errors.New("socket died")
	table.breakDump = func(q Query) error {
		if q.Addr == w.addr("203.0.113.10") {
			return dead
		}
		return nil
	}
	audit(t, table, func(t *testing.T, a *Auditor, log *bytes.Buffer) {
		a.Reset(w.state(), Look{})
		a.Commit(deltaOf(w.state(), withoutWeb(w)))
		elapse(time.Second)
		require.Equal(t, 1, a.Stats().Pending)
		require.ErrorIs(t, a.Stats().LastError, dead)
		require.Contains(t, log.String(), "socket died")
		for _, f := range table.list() {
			require.NotEqual(t, w.addr("203.0.113.11"), f.Orig.Dst)
		}
		table.mu.Lock()
		table.breakDump = nil
		table.mu.Unlock()
		require.NoError(t, a.Wait(t.Context()))
		require.Empty(t, table.list())
	})
}

// A packet that met the old rules enters its flow after the first look.
func TestSecondLook(t *testing.T) {
	w, table := world(IPv4), new(fakeTable)
	audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
		a.Reset(w.state(), Look{})
		a.Commit(deltaOf(w.state(), withoutWeb(w)))
		require.NoError(t, a.Wait(t.Context()))
		require.Positive(t, a.Stats().SecondLooks)
		table.insert(inbound(w, 2)...)
		a.Commit(deltaOf(w.state(), withoutWeb(w)))
		require.NoError(t, a.Wait(t.Context()))
		require.Empty(t, table.list(), "a new change is not put off to the second look of the old one")
		require.Positive(t, a.Stats().SecondLooks)
		table.insert(inbound(w, 2)...)
		elapse(time.Second)
		require.Empty(t, table.list())
		require.Zero(t, a.Stats().SecondLooks)

		table.insert(inbound(w, 2)...)
		passes := a.Stats().Passes
		elapse(time.Hour)
		require.Equal(t, passes, a.Stats().Passes, "idle is idle")
	})
}

func TestHowFlowsAreFound(t *testing.T) {
	w := world(IPv4)
	many := nat.State{}
	for i := range 100 {
		many.Addresses = append(many.Addresses, nat.Address{Public: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), Hosted: true})
	}
	narrower := w.state()
	narrower.Host.Cluster = narrower.Host.Cluster[1:]
	attached := w.state()
	attached.Addresses[0].Attached = w.addrs("10.244.1.10", "10.244.1.20")
	newShard := w.state()
	w.setShard(&newShard, "203.0.113.201")
	owner := w.state()
	owner.Addresses[0].Owner.Name = "other"
	for _, row := range []struct {
		name          string
		before, after nat.State
		noFilter      bool
		want          []Query
	}{
		{name: "nothing that matters", before: w.state(), after: owner},
		{name: "one address", before: nat.State{}, after: nat.State{Addresses: w.state().Addresses[:1]},
			want: []Query{{Field: OrigDst, Addr: w.addr("203.0.113.10")}, {Field: ReplyDst, Addr: w.addr("203.0.113.10")}}},
		{name: "another backend attached", before: w.state(), after: attached,
			want: []Query{{Field: OrigDst, Addr: w.addr("203.0.113.10")}, {Field: ReplyDst, Addr: w.addr("203.0.113.10")}}},
		{name: "one backend", before: nat.State{}, after: nat.State{Backends: w.state().Backends[:1]},
			want: []Query{{Field: OrigSrc, Addr: w.addr("10.244.1.10")}}},
		{name: "kernel cannot", before: nat.State{}, after: nat.State{Addresses: w.state().Addresses[:1]}, noFilter: true,
			want: []Query{{Family: IPv4, AnyOf: w.addrs("203.0.113.10")}}},
		{name: "many addresses", before: nat.State{}, after: many, want: []Query{{Family: IPv4}}},
		{name: "cluster range", before: w.state(), after: narrower, want: []Query{{Family: IPv4}}},
		{name: "shard", before: w.state(), after: newShard, want: []Query{{Family: IPv4}, {Family: IPv6}}},
	} {
		t.Run(row.name, func(t *testing.T) {
			table := &fakeTable{noFilter: row.noFilter}
			audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
				a.Reset(row.before, Look{})
				a.Commit(deltaOf(row.before, row.after))
				require.NoError(t, a.Wait(t.Context()))
				table.mu.Lock()
				defer table.mu.Unlock()
				require.Equal(t, row.want, table.dumps)
			})
		})
	}
}

// Flows that no single address finds: destinations and sources of whole ranges.
func TestHostChanges(t *testing.T) {
	eachFamily(t, func(t *testing.T, w world) {
		table := new(fakeTable)
		table.insert(
			w.flow("tcp 10.244.1.10:1 192.0.2.1:80 192.0.2.1:80 203.0.113.10:1"), // stays
			w.flow("tcp 10.244.1.10:2 192.0.2.66:80 192.0.2.66:80 203.0.113.10:2"),
			w.flow("tcp 10.9.0.1:3 192.0.2.1:80 192.0.2.1:80 203.0.113.200:3"),
			w.flow("tcp 10.9.0.1:4 192.0.2.1:80 192.0.2.1:80 10.9.0.1:4"),
		)
		after := w.state()
		after.Host.Cluster = append(after.Host.Cluster, w.named("192.0.2.66", "192.0.2.66"))
		w.setShard(&after, "203.0.113.201")
		audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
			a.Reset(w.state(), Look{})
			a.Commit(deltaOf(w.state(), after))
			require.NoError(t, a.Wait(t.Context()))
			require.Len(t, table.list(), 1)
			require.EqualValues(t, 1, table.list()[0].Orig.SrcPort)
		})
	})
}

func TestResetLooksAtFormerAddresses(t *testing.T) {
	w, table := world(IPv4), new(fakeTable)
	table.insert(inbound(w, 2)...)
	table.insert(w.flow("tcp 10.244.1.20:1 192.0.2.1:80 192.0.2.1:80 10.244.1.20:1"))
	audit(t, table, func(t *testing.T, a *Auditor, _ *bytes.Buffer) {
		a.Reset(withoutWeb(w), Look{Everything: true})
		require.NoError(t, a.Wait(t.Context()))
		require.Len(t, table.list(), 2, "nobody said that the address was ours; the bare flow of db is stale")
		a.Reset(withoutWeb(w), Look{Addresses: w.addrs("203.0.113.10")})
		require.NoError(t, a.Wait(t.Context()))
		require.Empty(t, table.list())
	})
}

func TestPurgeAndCount(t *testing.T) {
	eachFamily(t, func(t *testing.T, w world) {
		for _, noFilter := range []bool{false, true} {
			table := &fakeTable{noFilter: noFilter}
			table.insert(inbound(w, 300)...)
			table.insert(
				w.flow("tcp 10.244.1.10:1 192.0.2.1:80 192.0.2.1:80 203.0.113.10:1"),
				w.flow("tcp 10.244.1.10:1 203.0.113.10:80 10.244.1.10:80 203.0.113.10:1"),
				w.flow("tcp 10.244.1.10:1 203.0.113.20:22 10.244.1.20:22 203.0.113.10:1"),
				w.flow("tcp 192.0.2.1:1 10.244.1.20:22 10.244.1.20:22 192.0.2.1:1"),
				w.flow("tcp 192.0.2.1:1 192.0.2.9:22 192.0.2.9:22 192.0.2.1:1"),
			)
			broken := 1
			table.breakDump = func(Query) error {
				if broken--; broken >= 0 {
					return ErrInterrupted
				}
				return nil
			}
			public := w.addrs("203.0.113.10", "203.0.113.20", "203.0.113.30")
			inside := w.addrs("10.244.1.10", "10.244.1.20")
			want := map[Pair]int{
				{Public: public[0]}: 303, {public[0], inside[0]}: 303, {public[0], inside[1]}: 0,
				{public[1], inside[1]}: 1, {public[1], inside[0]}: 0, {Public: public[2]}: 0,
			}
			count, err := Count(t.Context(), table, slices.Collect(maps.Keys(want)))
			require.NoError(t, err)
			require.Equal(t, want, count)

			deleted, err := Purge(t.Context(), table, append(public, netip.Addr{}), w.addrs("10.244.1.20"))
			require.NoError(t, err)
			require.Equal(t, 304, deleted)
			require.Len(t, table.list(), 1)
		}
	})
}

// A kernel may refuse to select by address when some addresses have been counted already; which come first is chance.
func TestCountBeginsAnewWithoutTheFilter(t *testing.T) {
	w := world(IPv4)
	table, searches := &fakeTable{}, 0
	table.insert(inbound(w, 3)...)
	table.insert(w.flow("tcp 10.244.1.10:1 203.0.113.20:22 10.244.1.20:22 203.0.113.10:1"))
	table.breakDump = func(q Query) error {
		if searches++; q.byAddress() && searches > 3 {
			return ErrNoFilter
		}
		return nil
	}
	public := w.addrs("203.0.113.10", "203.0.113.20")
	count, err := Count(t.Context(), table, []Pair{{Public: public[0]}, {Public: public[1]}})
	require.NoError(t, err)
	require.Equal(t, map[Pair]int{{Public: public[0]}: 4, {Public: public[1]}: 1}, count)
}
