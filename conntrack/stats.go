// SPDX-License-Identifier: Apache-2.0

package conntrack

import "time"

// Stats counts what an Auditor has done since its start, and what it has still
// to do.
type Stats struct {
	// Passes includes the failed ones, which FailedPasses counts.
	Passes, FailedPasses int
	// FullDumps counts the times that all flows of a family were read.
	FullDumps int
	// Examined counts flows that were judged; Gone those that had ended by
	// themselves when they were to be deleted.
	Examined, Deleted, Gone, DeleteErrors int
	// LastDuration is that of the newest pass.
	LastDuration time.Duration
	// LastError is nil after a pass that succeeded.
	LastError error

	// Pending counts targets (addresses, backends, ranges) without a successful
	// look, SecondLooks those that are to be looked at once more.
	Pending, SecondLooks int
	// OldestPending is the time when the oldest pending target was committed,
	// zero when there is none.
	OldestPending time.Time
}

// Stats returns the counters at this moment.
func (a *Auditor) Stats() Stats {
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := a.stats
	s.Pending, s.SecondLooks = a.first, len(a.pending)-a.first
	for _, e := range a.pending {
		if !e.again && (s.OldestPending.IsZero() || e.since.Before(s.OldestPending)) {
			s.OldestPending = e.since
		}
	}
	return s
}

func (s *Stats) note(p *pass, err error, took time.Duration) {
	s.Passes++
	if err != nil {
		s.FailedPasses++
	}
	s.FullDumps += p.full
	s.Examined += p.examined
	s.Deleted += p.result.Deleted
	s.Gone += p.result.Gone
	s.DeleteErrors += p.result.Failed
	s.LastDuration, s.LastError = took, err
}
