// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func measureAudit(ctx context.Context, s settings) ([]*table, error) {
	audits := newTable(fmt.Sprintf("From the commit until the stale flows are gone, with %d flows of %d addresses, 20 each: "+
		"median (smallest–largest) of %d. A change that follows on another waits longer, by the time that the audit of the other took.", crowdFlows, crowdAddresses, s.audits),
		"family", "changed addresses", "flows deleted", "milliseconds", "processor ms", "extra memory, MB", "goal")
	latency := newTable(fmt.Sprintf("Microseconds to program one changed endpoint among %d Services, once a millisecond for %v.",
		crowdAddresses, s.latency),
		"meanwhile", "changes", "median (quartiles)", "p99")
	for _, family := range testenv.Families() {
		if err := auditFamily(ctx, s, family, audits, latency); err != nil {
			return nil, fmt.Errorf("%v: %w", family, err)
		}
	}
	return []*table{audits, latency}, nil
}

func auditFamily(ctx context.Context, s settings, family testenv.Family, audits, latency *table) (err error) {
	c, err := newCrowd(family)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	for _, changed := range []int{1, 1000} {
		if err := c.addAudits(ctx, s, audits, changed); err != nil {
			return fmt.Errorf("%d addresses: %w", changed, err)
		}
	}
	if family == testenv.IPv4 {
		return c.addLatency(ctx, s, latency)
	}
	return nil
}

// crowd is a namespace full of flows.
type crowd struct {
	family testenv.Family
	ns     *testenv.NetNS
	filler *filler
	flows  *conntrack.Netlink
	state  nat.State
}

func newCrowd(family testenv.Family) (*crowd, error) {
	ns, err := testenv.New("node")
	if err != nil {
		return nil, err
	}
	c := &crowd{family: family, ns: ns, state: crowdState(family)}
	if c.flows, err = conntrack.Open(ns.FD()); err == nil {
		c.filler, err = newFiller(ns, family)
	}
	if err == nil {
		err = c.filler.fill(crowdAddresses)
	}
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return c, nil
}

func (c *crowd) close() error {
	if c.filler != nil {
		c.filler.close()
	}
	return c.ns.Close()
}

// withAuditor runs f beside an auditor that knows the state.
func (c *crowd) withAuditor(ctx context.Context, f func(context.Context, *conntrack.Auditor) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	a := conntrack.NewAuditor(c.flows, conntrack.Config{SecondLook: -1})
	group.Go(func() error { a.Run(ctx); return nil })
	err := f(ctx, a)
	cancel()
	return errors.Join(err, group.Wait())
}

func (c *crowd) addAudits(ctx context.Context, s settings, t *table, changed int) error {
	var wall, cpu, memory []float64
	deleted := 0
	for range s.audits {
		err := c.withAuditor(ctx, func(ctx context.Context, a *conntrack.Auditor) error {
			// The first search in the life of a process also finds out what the kernel can do.
			first := time.Now()
			a.Reset(c.state, conntrack.Look{Addresses: []netip.Addr{c.state.Addresses[0].Public}})
			if err := a.Wait(ctx); err != nil {
				return err
			}
			time.Sleep(time.Since(first)) // an auditor rests after each pass as long as that took
			runtime.GC()
			heap, used, start := watchHeap(), processTime(), time.Now()
			a.Commit(removal(c.state, changed))
			err := a.Wait(ctx)
			wall = append(wall, milliseconds(time.Since(start)))
			cpu = append(cpu, milliseconds(processTime()-used))
			memory = append(memory, float64(heap.growth())/1e6)
			deleted = a.Stats().Deleted
			return err
		})
		if err == nil && deleted != changed*crowdFlows/crowdAddresses {
			err = fmt.Errorf("%d flows deleted", deleted)
		}
		if err = errors.Join(err, c.filler.fill(changed)); err != nil {
			return err
		}
	}
	goals := map[int]string{1: "150 ms, 10 MB", 1000: "one pass, 3000 ms"}
	t.add(c.family.String(), strconv.Itoa(changed), strconv.Itoa(deleted), extremes(wall), extremes(cpu), extremes(memory), goals[changed])
	return nil
}

// addLatency times changes while nothing else goes on, and while audits of all flows follow one another without a pause.
func (c *crowd) addLatency(ctx context.Context, s settings, t *table) (err error) {
	p, err := newPlane(fleetWithSpare(crowdAddresses))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, busy := range []bool{false, true} {
		name, passes := "nothing", 0
		auditing, stop := context.WithCancel(ctx)
		var group errgroup.Group
		if busy {
			group.Go(func() (err error) { passes, err = c.auditUntil(auditing); return err })
		}
		took, err := p.repeatFor(ctx, toggles()[0], s.latency)
		stop()
		if err = errors.Join(err, group.Wait()); err != nil {
			return err
		}
		if busy {
			name = fmt.Sprintf("audits of all %d flows, %d of them", crowdFlows, passes)
		}
		t.add(name, strconv.Itoa(len(took)), quartiles(took).String(), short(percentile(took, 0.99)))
	}
	return nil
}

// repeatFor makes a change every millisecond and returns how long each took, in microseconds.
func (p *plane) repeatFor(ctx context.Context, c toggle, duration time.Duration) (took []float64, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(duration); time.Now().Before(end); {
		one, err := p.pass(c.batches[len(took)%2])
		if err = errors.Join(err, ctx.Err()); err != nil {
			return nil, err
		}
		took = append(took, microseconds(one.total))
		<-tick.C
	}
	return took, nil
}

// auditUntil audits everything again and again. A lasting auditor rests after each pass as long as that took; these are new ones.
func (c *crowd) auditUntil(ctx context.Context) (passes int, err error) {
	for ctx.Err() == nil {
		err := c.withAuditor(ctx, func(ctx context.Context, a *conntrack.Auditor) error {
			a.Reset(c.state, conntrack.Look{Everything: true})
			return a.Wait(ctx)
		})
		if err != nil && ctx.Err() == nil {
			return passes, err
		}
		passes++
	}
	return passes, nil
}
