// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/testenv"
)

func measureStart(ctx context.Context, s settings) ([]*table, error) {
	t := newTable(fmt.Sprintf("Milliseconds from the objects in memory to a programmed kernel: median (smallest–largest) of %d. "+
		"The processor time is that of the whole process, with its garbage collector.", s.starts),
		"Services", "of them here", "start on", "policy", "kernel", "total", "processor ms", "goal")
	for _, size := range []struct {
		services, local int
		goal            string
	}{{10_000, 10_000, "300"}, {100_000, 10_000, "3000"}, {100_000, 100_000, "3000"}} {
		objects := fleet(size.services, size.local)
		var cold, warm [4][]float64
		for range s.starts {
			if err := errors.Join(startTwice(objects, &cold, &warm), ctx.Err()); err != nil {
				return nil, fmt.Errorf("%d Services: %w", size.services, err)
			}
		}
		n, here := strconv.Itoa(size.services), strconv.Itoa(size.local)
		t.add(n, here, "an empty kernel", extremes(cold[0]), extremes(cold[1]), extremes(cold[2]), extremes(cold[3]), size.goal)
		t.add(n, here, "an up-to-date table", extremes(warm[0]), extremes(warm[1]), extremes(warm[2]), extremes(warm[3]), "")
	}
	return []*table{t}, nil
}

// startTwice starts on an empty kernel and, after the end of that agent, on what it left.
func startTwice(objects nat.Objects, cold, warm *[4][]float64) (err error) {
	ns, err := testenv.New("node")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	for i, into := range []*[4][]float64{cold, warm} {
		runtime.GC()
		restore := agent.RelaxGC(100)
		result, err := timeStart(ns, objects, into)
		restore()
		if err != nil {
			return err
		}
		if wrote := result.Added > 0; wrote != (i == 0) {
			return fmt.Errorf("start %d wrote %d elements", i+1, result.Added)
		}
	}
	return nil
}

// timeStart does what an agent does at its start. A table that exists is read in two parts: the maps for the backends
// that stay, and the rest to compare it.
func timeStart(ns *testenv.NetNS, objects nat.Objects, into *[4][]float64) (result nft.Result, err error) {
	start, used := time.Now(), processTime()
	table, err := nft.Open(nft.Options{NetNS: ns.FD()})
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, table.Close()) }()
	programmed, err := table.Backends()
	if err != nil {
		return result, err
	}
	read := time.Since(start)
	engine := nat.NewEngine(policy(), programmed)
	engine.Apply(objects, nat.Facts{Uplinks: []string{"up0"}})
	state := engine.State()
	policy := time.Since(start) - read
	result, err = table.Sync(state)
	total := time.Since(start)
	for i, d := range []time.Duration{policy, total - policy, total, processTime() - used} {
		into[i] = append(into[i], milliseconds(d))
	}
	return result, err
}

// extremes shows all of few values.
func extremes(values []float64) string {
	return spread{percentile(values, 0.5), slices.Min(values), slices.Max(values)}.String()
}
