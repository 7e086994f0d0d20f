// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
)

// Options are what an agent is made of.
type Options struct {
	Policy nat.Config
	// Uplinks are the interfaces that lead to the outside; empty means those of the default routes.
	Uplinks []string
	// NetNS is a file descriptor of the network namespace that is the node; 0 means the process's own.
	NetNS  int
	Source Source
	// Reporter may be nil.
	Reporter Reporter
	// HTTP serves health, metrics and state; nil serves nothing. The agent closes it.
	HTTP net.Listener
	Log  *slog.Logger
	// LeavePredecessor keeps the table of cozy-proxy where there is one, and reports the conflict.
	LeavePredecessor bool
	// Programmed, unless nil, is called once, when the table was programmed for the first time.
	Programmed func()
	// Unowned forgoes the table's owner flag, as on kernels before 6.9.
	Unowned bool

	// hooks are for tests of this package.
	hooks hooks
}

// auditGrace is how long the end of an agent waits for the flow audit, which takes milliseconds
// unless it fails; the next agent, which may wait for this one, has a second in all (R17).
const auditGrace = 500 * time.Millisecond

// Agent keeps one node's kernel as the objects say.
type Agent struct {
	options Options
	log     *slog.Logger
	table   *nft.Table
	tenants *nft.Tenants
	// audited tells the loop that no flow is left to look at.
	audited chan struct{}
	node    *node.Node
	kernel  *conntrack.Netlink
	flows   conntrack.Table
	auditor *conntrack.Auditor
	loop    *loop
}

// New opens the handles on the kernel. It fails with a reason that an operator can act on when the kernel lacks a feature or the process
// a right. Nothing is changed yet.
func New(o Options) (*Agent, error) {
	if err := o.Policy.Validate(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a := &Agent{options: o, log: o.Log}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if err := a.open(); err != nil {
		return nil, errors.Join(err, a.close())
	}
	a.loop = newLoop(a)
	return a, nil
}

func (a *Agent) open() (err error) {
	if a.node, err = node.Open(node.Options{
		NetNS: a.options.NetNS, Uplinks: a.options.Uplinks, Tenants: a.options.Policy.Tenants, Log: a.log,
	}); err != nil {
		return err
	}
	table := nft.Options{
		NetNS: a.options.NetNS, Log: a.log, Unowned: a.options.Unowned, Commit: a.options.hooks.commit,
		ShardPorts: a.options.Policy.ShardPorts,
	}
	if a.table, err = nft.Open(table); err != nil {
		return err
	}
	a.tenants = a.table.Tenants(a.options.Policy.Tenants)
	if a.kernel, err = conntrack.Open(a.options.NetNS); err != nil {
		return err
	}
	a.flows = a.options.hooks.wrap(a.kernel)
	a.audited = make(chan struct{}, 1)
	a.auditor = conntrack.NewAuditor(a.flows, conntrack.Config{Log: a.log, Settled: func() { kick(a.audited) }})
	return nil
}

func (a *Agent) close() error {
	var errs []error
	if a.table != nil {
		errs = append(errs, a.table.Close())
	}
	if a.tenants != nil {
		errs = append(errs, a.tenants.Close())
	}
	if a.node != nil {
		errs = append(errs, a.node.Close())
	}
	return errors.Join(errs...)
}

// Run works until ctx ends, and then leaves table and flows as they are: translation goes on without the agent (R17). An error means
// that one of its parts gave up, which none does for a fault that may pass.
func (a *Agent) Run(ctx context.Context) error {
	a.log.Info("started", "node", a.options.Policy.Node, "kernel", node.KernelRelease())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { a.options.Source.Run(ctx); return nil })
	group.Go(func() error { a.node.Run(ctx, a.loop.kickFacts); return nil })
	auditing, endAudit := context.WithCancel(context.WithoutCancel(ctx))
	group.Go(func() error { a.auditor.Run(auditing); return nil })
	group.Go(func() error { return a.table.Watch(ctx) })
	group.Go(func() error {
		defer endAudit()
		err := a.loop.run(ctx)
		a.finishAudit(ctx)
		return err
	})
	if a.options.Reporter != nil {
		group.Go(func() error { a.options.Reporter.Run(ctx); return nil })
	}
	if a.options.HTTP != nil {
		group.Go(func() error { return serve(ctx, a.options.HTTP, a.handler()) })
	}
	err := group.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	a.log.Info("stopped; translation stays in the kernel")
	return errors.Join(err, a.loop.release(), a.close())
}

// finishAudit gives the audit of the last transaction a moment: the next agent would look at every flow, but an address that is gone by
// then it would not know.
func (a *Agent) finishAudit(ctx context.Context) {
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), auditGrace)
	defer cancel()
	if err := a.auditor.Wait(grace); err != nil {
		a.log.Warn("stopped before the flow audit was done", "error", err)
	}
}

// Health says how the agent is.
func (a *Agent) Health() Health {
	h := a.loop.health.get(time.Now())
	if source, may := a.options.Source.(connected); may {
		if ok, why := source.Connected(); !ok {
			h.Ready, h.Disconnected = false, why
		}
	}
	return h
}

// AuditStats says what the flow audit did and what it still has to do.
func (a *Agent) AuditStats() conntrack.Stats { return a.auditor.Stats() }
