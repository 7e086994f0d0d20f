// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/natplane/natplane/nat"
)

// Config sets up an Auditor. The zero value is good.
type Config struct {
	// Log takes one line for each pass that deleted something or failed. Nil
	// keeps the auditor silent.
	Log *slog.Logger
	// SecondLook is the time after which an audited target is looked at once
	// more, for packets that met the old rules and entered their flow after
	// the first look. 0 means 200ms; a negative value means no second look.
	SecondLook time.Duration
	// Retry is the wait after a first failure. It doubles up to 100 times
	// Retry. 0 means 100ms.
	Retry time.Duration
	// Settled is called, without waiting for it to do much, whenever nothing is left to look at, not even a second time. Nil is nobody.
	Settled func()
}

// maxRest bounds the pause after a pass. Without it a node on which something
// changes all the time would do nothing but scan.
const maxRest = time.Second

// Auditor keeps flows in line with the committed state. Its methods may be
// called from many goroutines.
type Auditor struct {
	table  Table
	config Config
	wake   chan struct{}

	mu      sync.RWMutex
	index   *Index
	pending map[target]pending
	seq     uint64
	first   int           // entries of pending that had no successful look yet
	settled chan struct{} // closed and replaced whenever first falls
	stats   Stats
}

// pending is a target that has not been dealt with.
type pending struct {
	memory
	seq   uint64 // tells a target that was added again while a pass ran
	since time.Time
	due   time.Time
	again bool // this is the second look
}

// NewAuditor returns an auditor of an empty state. Run makes it work.
func NewAuditor(table Table, config Config) *Auditor {
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.SecondLook == 0 {
		config.SecondLook = 200 * time.Millisecond
	}
	if config.Retry == 0 {
		config.Retry = 100 * time.Millisecond
	}
	return &Auditor{
		table:   table,
		config:  config,
		wake:    make(chan struct{}, 1),
		index:   NewIndex(nat.State{}),
		pending: make(map[target]pending),
		settled: make(chan struct{}),
	}
}

// Commit tells what a committed transaction changed. It returns at once.
func (a *Auditor) Commit(d nat.Delta) {
	now := time.Now()
	a.mu.Lock()
	a.index.Apply(d)
	affected(d, func(t target, m memory) { a.add(t, m, now) })
	a.mu.Unlock()
	a.kick()
}

// Look says which flows a Reset has to look at.
type Look struct {
	// Everything judges all flows by the new state.
	Everything bool
	// Addresses are public addresses, also former ones: whatever was translated
	// for an address that the state does not have is deleted.
	Addresses []netip.Addr
	// Parted are former public addresses and the backends that they stood for: less is deleted than for Addresses, of which nobody knows the
	// backends.
	Parted map[netip.Addr][]netip.Addr
	// Backends are backends whose own connections are to be looked at.
	Backends []netip.Addr
	// Zones are those of former tenants.
	Zones []uint16
}

// Reset replaces the whole state, after a full programming. What was pending
// stays so. It returns at once.
func (a *Auditor) Reset(s nat.State, look Look) {
	now, index := time.Now(), NewIndex(s)
	a.mu.Lock()
	a.index = index
	if look.Everything {
		a.add(target{kind: everythingTarget}, memory{}, now)
	}
	for _, addr := range look.Addresses {
		a.add(publicOf(addr), memory{unknown: true}, now)
	}
	for addr, backends := range look.Parted {
		a.add(publicOf(addr), memory{backends: backends}, now)
	}
	for _, addr := range look.Backends {
		a.add(backendOf(addr), memory{}, now)
	}
	for _, zone := range look.Zones {
		a.add(zoneOf(zone), memory{}, now)
	}
	a.mu.Unlock()
	a.kick()
}

func (a *Auditor) kick() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// add is called with the lock held.
func (a *Auditor) add(t target, m memory, now time.Time) {
	a.seq++
	p, ok := a.pending[t]
	if !ok || p.again {
		a.first++
		p.since = now
	}
	p.merge(m)
	p.seq, p.due, p.again = a.seq, now, false
	a.pending[t] = p
}

// Wait returns when all that was pending at some moment after the call has been
// looked at with success. Second looks do not count.
func (a *Auditor) Wait(ctx context.Context) error {
	for {
		a.mu.RLock()
		first, settled := a.first, a.settled
		a.mu.RUnlock()
		if first == 0 {
			return nil
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Run audits until the context ends. It must run once.
func (a *Auditor) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	var rest time.Time
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
		now := time.Now()
		if now.Before(rest) {
			timer.Reset(rest.Sub(now))
			continue
		}
		if p := a.take(now); p != nil {
			failures = a.runPass(ctx, p, failures)
			end := time.Now()
			rest = end.Add(min(end.Sub(now), maxRest))
		}
		if due, ok := a.nextDue(); ok {
			timer.Reset(max(0, time.Until(later(due, rest))))
		}
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// runPass runs a pass and returns the number of failures in a row.
func (a *Auditor) runPass(ctx context.Context, p *pass, failures int) int {
	start := time.Now()
	err := p.run(ctx)
	took := time.Since(start)
	if ctx.Err() != nil {
		return failures
	}
	delay := a.config.Retry << min(failures, 7)
	delay = min(delay, 100*a.config.Retry)
	if p.result.Deleted > 0 {
		a.config.Log.Info("stale flows deleted", "flows", p.result.Deleted, "examined", p.examined,
			"targets", len(p.targets), "reasons", p.reasons(), "took", took)
	}
	if err != nil {
		failures++
		a.config.Log.Warn("flow audit incomplete", "targets", len(p.targets)-p.finished(), "refused", p.result.Failed,
			"attempt", failures, "retry", delay, "error", err)
	} else {
		failures = 0
	}
	a.finish(p, err, took, delay)
	return failures
}

// take starts a pass over what is due; nil means that nothing is.
func (a *Auditor) take(now time.Time) *pass {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var p *pass
	for t, e := range a.pending {
		if e.due.After(now) {
			continue
		}
		if p == nil {
			p = newPass(a)
		}
		p.add(t, e)
	}
	return p
}

func (a *Auditor) nextDue() (time.Time, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	var due time.Time
	for _, e := range a.pending {
		if due.IsZero() || e.due.Before(due) {
			due = e.due
		}
	}
	return due, len(a.pending) > 0
}

// finish strikes off what the pass has done and schedules the rest. A target
// that was added again meanwhile stays as it is.
func (a *Auditor) finish(p *pass, err error, took, delay time.Duration) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	defer a.tellSettled()
	for t, seq := range p.targets {
		e := a.pending[t]
		switch {
		case e.seq != seq:
		case !p.done[t]:
			e.due = now.Add(delay)
			a.pending[t] = e
		case e.again || a.config.SecondLook < 0:
			a.drop(t, e)
		default:
			a.first--
			e.again, e.due = true, now.Add(a.config.SecondLook)
			a.pending[t] = e
		}
	}
	close(a.settled)
	a.settled = make(chan struct{})
	a.stats.note(p, err, took)
}

// tellSettled is called with the lock held.
func (a *Auditor) tellSettled() {
	if len(a.pending) == 0 && a.config.Settled != nil {
		a.config.Settled()
	}
}

// Idle reports whether nothing is left to look at.
func (a *Auditor) Idle() bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.pending) == 0
}

func (a *Auditor) drop(t target, e pending) {
	if !e.again {
		a.first--
	}
	delete(a.pending, t)
}

// judge decides by the newest committed state, not by that of the pass's start.
func (a *Auditor) judge(f Flow, s *scope) Verdict {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if !s.touches(a.index, f) {
		return Legal
	}
	return a.index.Judge(f, s)
}
