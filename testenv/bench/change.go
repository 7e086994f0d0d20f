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

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/testenv"
)

// plane is the part of an agent that programs, on a namespace that plays the node.
type plane struct {
	ns     *testenv.NetNS
	engine *nat.Engine
	table  *nft.Table
	facts  nat.Facts
}

func newPlane(objects nat.Objects) (*plane, error) {
	ns, err := testenv.New("node")
	if err != nil {
		return nil, err
	}
	p := &plane{ns: ns, engine: nat.NewEngine(policy(), nil), facts: nat.Facts{Uplinks: []string{"up0"}}}
	if p.table, err = nft.Open(nft.Options{NetNS: ns.FD()}); err != nil {
		return nil, errors.Join(err, ns.Close())
	}
	p.engine.Apply(objects, p.facts)
	if _, err := p.table.Sync(p.engine.State()); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *plane) close() error { return errors.Join(p.table.Close(), p.ns.Close()) }

// timing is what a pass of the agent took.
type timing struct{ policy, compare, commit, total time.Duration }

// pass is one of the agent's, from the changed objects to the committed transaction.
func (p *plane) pass(batch nat.Objects) (timing, error) {
	start := time.Now()
	outcome := p.engine.Apply(batch, p.facts)
	policy := time.Since(start)
	result, err := p.table.Apply(outcome.Delta)
	total := time.Since(start)
	if err == nil && result.Added+result.Removed == 0 {
		err = errors.New("the change changed nothing")
	}
	return timing{policy, result.Compared, result.Committed, total}, err
}

// toggle is a change and its opposite, which a measurement repeats by turns.
type toggle struct {
	name    string
	batches [2]nat.Objects
}

func toggles() []toggle {
	w := machine(0)
	moved, back, gone, again := nat.NewObjects(), nat.NewObjects(), nat.NewObjects(), nat.NewObjects()
	slice := w.slice(0, nextBackend())
	key := nat.Key{Namespace: slice.Namespace, Name: slice.Name}
	moved.Slices[key], back.Slices[key] = slice, w.slice(0, w.backends[0])
	gone.Services[w.key], again.Services[w.key] = nil, w.service()
	return []toggle{
		{"its endpoint gets another address", [2]nat.Objects{moved, back}},
		{"the Service goes, or comes", [2]nat.Objects{gone, again}},
	}
}

// nextBackend is the other address of the machine that changes.
func nextBackend() netip.Addr { return netip.MustParseAddr("10.99.0.1") }

func measureChange(ctx context.Context, s settings) ([]*table, error) {
	t := newTable(fmt.Sprintf("Microseconds from the changed object to the committed transaction: median (quartiles) of %d.", s.changes),
		"Services", "change of one", "policy", "difference", "kernel commit", "total", "p99 of total", "goal")
	goals := map[int]string{10_000: "2000", 100_000: "10000"}
	for _, n := range []int{1, 1_000, 10_000, 100_000} {
		if err := addChanges(ctx, s, t, n, goals[n]); err != nil {
			return nil, fmt.Errorf("%d Services: %w", n, err)
		}
	}
	return []*table{t}, nil
}

func addChanges(ctx context.Context, s settings, t *table, n int, goal string) (err error) {
	p, err := newPlane(fleetWithSpare(n))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, c := range toggles() {
		took, err := p.repeat(ctx, c, s.changes)
		if err != nil {
			return err
		}
		t.add(strconv.Itoa(n), c.name, quartiles(took[0]).String(), quartiles(took[1]).String(), quartiles(took[2]).String(),
			quartiles(took[3]).String(), short(percentile(took[3], 0.99)), goal)
	}
	return nil
}

// fleetWithSpare has a second machine for the first Service to move to.
func fleetWithSpare(n int) nat.Objects {
	objects, spare := fleet(n, n), machine(0)
	spare.key.Name, spare.backends = "next", []netip.Addr{nextBackend()}
	objects.Pods[spare.key] = spare.pod()
	return objects
}

// repeat returns how long policy, comparison, commit and all of that took, in microseconds.
func (p *plane) repeat(ctx context.Context, c toggle, times int) (parts [4][]float64, err error) {
	runtime.GC() // what the start left behind
	for i := range times {
		took, err := p.pass(c.batches[i%2])
		if err = errors.Join(err, ctx.Err()); err != nil {
			return parts, fmt.Errorf("%s: %w", c.name, err)
		}
		for j, d := range []time.Duration{took.policy, took.compare, took.commit, took.total} {
			parts[j] = append(parts[j], microseconds(d))
		}
	}
	return parts, nil
}
