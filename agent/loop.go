// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
)

// loop owns policy and table: nothing else changes either. Whatever comes while a pass is under way is one batch of the next pass, which
// is all the coalescing that is needed.
type loop struct {
	log      *slog.Logger
	source   Source
	reporter Reporter
	table    *nft.Table
	tenants  *nft.Tenants
	node     *node.Node
	flows    conntrack.Table
	auditor  *conntrack.Auditor
	config   nat.Config
	takeOver bool

	facts   chan struct{}
	audited <-chan struct{}
	queries chan func()
	health  *health
	passes  *passMetrics

	// shard is what the kernel holds of a shard, for those who ask outside of the loop.
	shard atomic.Pointer[nat.Shard]

	// engine is nil until the first pass.
	engine *nat.Engine
	// held are batches that came before the source was complete.
	held *nat.Objects
	// untold is what the reporter has not heard.
	untold unreported
	// unsure is true when the kernel has to be read before anything is written: at the start and after any trouble.
	unsure bool
	// former is what the audit of the next success has to look for.
	former former
	// closed are the interfaces of tenants that the log knows to be closed, and why.
	closed  map[string]string
	backoff backoff
	waiting bool
	// programmed tells of the first success; nil afterwards.
	programmed func()
	// lock is held where the table's owner flag does not tell two agents apart.
	lock io.Closer
}

func newLoop(a *Agent) *loop {
	return &loop{
		log: a.log, source: a.options.Source, reporter: a.options.Reporter,
		table: a.table, tenants: a.tenants, node: a.node, flows: a.flows, auditor: a.auditor,
		config: a.options.Policy, takeOver: !a.options.LeavePredecessor,
		programmed: a.options.Programmed,
		facts:      make(chan struct{}, 1), audited: a.audited, queries: make(chan func()),
		health: &health{}, passes: newPassMetrics(),
		former: newFormer(),
		unsure: true,
	}
}

// kickFacts tells the loop that the node's addresses, uplinks or routes changed.
func (l *loop) kickFacts() { kick(l.facts) }

// kick signals on a channel with room for one: signals that nobody has taken yet are one.
func kick(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *loop) run(ctx context.Context) error {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case query := <-l.queries:
			query()
			continue
		case <-l.table.Changed():
			l.log.Warn("the table was changed by others; reading it again")
			l.health.update(func(h *Health) { h.Drift++ })
			l.unsure = true
		case <-l.audited:
			if !l.forget() {
				continue
			}
		case <-l.source.Changed():
		case <-l.facts:
		case <-retry.C:
		}
		if again := l.pass(); again > 0 {
			retry.Reset(again)
		}
	}
}

// forget has the table forget the addresses whose flows are gone, and reports whether a pass has to put the table right.
func (l *loop) forget() bool {
	if !l.auditor.Idle() {
		return false
	}
	err := l.table.Forget()
	if err != nil {
		l.log.Warn("a transaction failed; reading the table again", "error", err)
		l.unsure = true
	}
	return err != nil
}

// pass brings the kernel to what the objects say now. It returns after which delay to try again, or 0.
func (l *loop) pass() time.Duration {
	start := time.Now()
	delta, complete := l.intake()
	if !complete {
		return 0
	}
	l.health.change(start)
	result, err := l.program(delta)
	if errors.Is(err, nft.ErrOwned) || errors.Is(err, node.ErrLocked) {
		return l.waitForOwner(err)
	}
	l.passes.observe(time.Since(start), result, err)
	if err != nil {
		delay := l.backoff.delay()
		l.health.failed(err)
		l.log.Error("programming failed; what is in the kernel goes on", "error", err, "retry", delay)
		l.reportFailure(err)
		return delay
	}
	for _, invalid := range result.Invalid {
		l.log.Error("a record was left out of the table", "error", invalid)
	}
	l.settled(result, time.Since(start))
	return 0
}

// intake takes what changed into the engine and returns what that changes; false until the source is complete.
func (l *loop) intake() (nat.Delta, bool) {
	batch, complete := l.source.Take()
	if l.held != nil {
		l.held.Merge(batch)
		batch = *l.held
	}
	if !complete {
		l.held = &batch
		return nat.Delta{}, false
	}
	l.held = nil
	if l.engine == nil {
		programmed, err := l.table.Backends()
		if err != nil {
			l.log.Warn("the table cannot be read; an ambiguous backend is not kept", "error", err)
		}
		l.engine = nat.NewEngine(l.config, programmed)
		l.health.update(func(h *Health) { h.Synced = true })
	}
	outcome := l.engine.Apply(batch, l.node.Facts())
	l.noteNode()
	l.followWorkloads(&outcome.Delta)
	l.untold.add(outcome)
	return outcome.Delta, true
}

// noteNode tells once when this node is none of those that there are.
func (l *loop) noteNode() {
	missing := l.engine.NodeMissing()
	l.health.update(func(h *Health) {
		if missing != "" && h.NodeMissing == "" {
			l.log.Warn("this node is not known", "problem", missing)
		}
		h.NodeMissing = missing
	})
}

// followWorkloads adds to the delta which interfaces the local backends are behind now.
func (l *loop) followWorkloads(delta *nat.Delta) {
	change := l.engine.SetWorkloads(l.workloads(delta.Backends))
	switch {
	case change == nil:
	case delta.Host == nil:
		delta.Host = change
	default:
		delta.Host.New = change.New
	}
}

// workloads returns the interfaces behind which local backends are routed, after some of these came and went.
func (l *loop) workloads(changes []nat.Change[nat.Backend]) []string {
	if len(changes) == 0 {
		return l.node.WorkloadInterfaces()
	}
	var add, remove []netip.Addr
	for _, c := range changes {
		switch {
		case c.Old == nil:
			add = append(add, c.New.Addr)
		case c.New == nil:
			remove = append(remove, c.Old.Addr)
		}
	}
	interfaces, err := l.node.TrackBackends(add, remove)
	if err != nil {
		l.log.Warn("the interface of a backend is not known yet; its sources are not checked until then", "error", err)
	}
	return interfaces
}

// program writes the differences, or reads and corrects the whole table when it is not sure what the kernel holds.
func (l *loop) program(delta nat.Delta) (nft.Result, error) {
	if err := l.acquire(); err != nil {
		return nft.Result{}, err
	}
	if !l.unsure {
		result, err := l.apply(delta)
		if err == nil {
			return result, nil
		}
		l.passes.failures.Inc()
		l.log.Warn("a transaction failed; reading the table again", "error", err)
		l.unsure = true
	}
	l.former.addDelta(delta)
	state := l.engine.State()
	result, err := l.syncOrTakeOver(state)
	l.former.add(result.Former...)
	if err != nil {
		return result, err
	}
	if err := l.openTenants(state.Host, l.tenants.Sync); err != nil {
		return result, err
	}
	l.unsure = false
	// Whatever happened in between, also to an agent that died before its audit was done: every flow is looked at once.
	look := l.former.take()
	look.Parted = result.Parted
	l.auditor.Reset(state, look)
	return result, nil
}

// settled says what a successful pass changed, to the log and to the objects.
func (l *loop) settled(result nft.Result, took time.Duration) {
	if l.programmed != nil {
		go l.programmed()
		l.programmed = nil
	}
	if l.waiting {
		l.log.Info("took over from the other agent")
		l.waiting = false
	}
	l.backoff.reset()
	l.health.applied()
	shard := l.engine.Shard()
	l.shard.Store(&shard)
	if result.Added+result.Removed > 0 || result.Replaced {
		l.log.Info("programmed", "added", result.Added, "removed", result.Removed, "replaced", result.Replaced, "took", took)
	}
	if l.untold.empty() {
		return
	}
	verdicts, gone := l.untold.take()
	for _, v := range verdicts {
		l.log.Debug("verdict", "object", v.Kind+" "+v.Key().String(), "programmed", v.Programmed, "reason", v.Reason, "message", v.Message)
	}
	if l.reporter != nil {
		l.reporter.Report(verdicts, gone)
	}
}

// reportFailure tells the objects that wait for the kernel why, once the fault is more than a passing one.
func (l *loop) reportFailure(err error) {
	if l.reporter == nil || !l.backoff.lasting() {
		return
	}
	verdicts := slices.Clone(l.untold.verdicts)
	for i := range verdicts {
		verdicts[i].Programmed, verdicts[i].Reason = false, nat.ReasonFailed
		verdicts[i].Message = "the kernel refused: " + err.Error()
	}
	l.reporter.Report(verdicts, nil)
}

// waitForOwner is what an agent does while another one owns the table (R17).
func (l *loop) waitForOwner(err error) time.Duration {
	if !l.waiting {
		l.waiting = true
		l.log.Warn("another agent owns the table on this node; waiting for its end", "error", err)
	}
	l.health.failed(err)
	l.health.update(func(h *Health) { h.Waiting = "another agent owns the table on this node" })
	return ownerRetry
}

func (l *loop) plan() nat.Plan {
	if l.engine == nil {
		return nat.Plan{Node: l.config.Node, Translations: []nat.Translation{}, Verdicts: []nat.Verdict{}}
	}
	return l.engine.Plan()
}

// Plan returns what the agent translates now, as `natplane plan` would print it.
func (a *Agent) Plan(ctx context.Context) (nat.Plan, error) {
	var plan nat.Plan
	err := a.loop.query(ctx, func() { plan = a.loop.plan() })
	return plan, err
}

// query runs f between two passes.
func (l *loop) query(ctx context.Context, f func()) error {
	done := make(chan struct{})
	select {
	case l.queries <- func() { f(); close(done) }:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
