// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/dynamic"

	"github.com/natplane/natplane/testenv"
)

func clusterSections() []section {
	return []section{{"cluster", "From the API server to a packet", measureCluster}}
}

// clusterSizes are numbers of delegated Services, with the memory that is granted for them.
func clusterSizes() []clusterSize {
	return []clusterSize{{10, 0}, {1_000, 60}, {10_000, 150}}
}

type clusterSize struct {
	services int
	goalMB   int
}

// clusterBench is an API server, a network, and the product on one of its nodes.
type clusterBench struct {
	log    *slog.Logger
	dir    string
	server *apiServer
	topo   *testenv.Topology
	binary string
	made   int // Services so far
	shards dynamic.ResourceInterface
}

// measureCluster times the way from a written address to a packet, and weighs the agent, while the Services become more and more. The
// agent is the binary with the kubeconfig of the server, as it is deployed.
func measureCluster(ctx context.Context, s settings) (tables []*table, err error) {
	b := &clusterBench{log: s.log}
	if b.dir, err = os.MkdirTemp("", "natplane-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	if b.binary, err = buildProduct(ctx, b.dir); err != nil {
		return nil, err
	}
	if b.server, err = startServer(ctx, b.dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.server.stop()) }()
	if b.topo, err = testenv.Build(slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.topo.Close()) }()
	if err := errors.Join(b.prepare(ctx), b.prepareShards(ctx)); err != nil {
		return nil, err
	}
	latency := newTable(fmt.Sprintf("Milliseconds from the write of an address into status.loadBalancer to the arrival of the first translated "+
		"packet, of %d changes. The time of the write itself, until the server answers, is within.", s.addresses),
		"Services in the API server", "write", "median (quartiles)", "p99", "largest", "goal for p99")
	shards := newTable(fmt.Sprintf("The same from the write of an address into the spec of an EgressShard to the arrival of the first packet that left with it, "+
		"of %d shards.", s.addresses), "Services in the API server", "write", "median (quartiles)", "p99", "largest")
	memory := newTable("Resident memory of the agent in MiB. *grown*: since before the first object, *fresh*: started on all of them; the rest is "+
		"of an agent on a node that has none of the machines.",
		"Services", "all machines here, grown", "fresh", "peak of the start", "all machines elsewhere, fresh", "goal")
	agent, err := b.startAgent(ctx, nodeName)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, agent.stop()) }()
	for _, size := range clusterSizes() {
		if s.limit > 0 && size.services > s.limit {
			continue
		}
		began := time.Now()
		if err := b.grow(ctx, size.services); err != nil {
			return nil, fmt.Errorf("%d Services: %w", size.services, err)
		}
		if err := agent.translates(ctx, size.services); err != nil {
			return nil, err
		}
		s.log.Info("made", "services", size.services, "took", time.Since(began).Round(time.Second))
		if err := b.addLatency(ctx, latency, size.services, s.addresses); err != nil {
			return nil, fmt.Errorf("%d Services: %w", size.services, err)
		}
		if err := b.addShards(ctx, shards, size.services, s.addresses); err != nil {
			return nil, fmt.Errorf("%d Services: %w", size.services, err)
		}
		if agent, err = b.addMemory(ctx, memory, size, agent); err != nil {
			return nil, fmt.Errorf("%d Services: %w", size.services, err)
		}
		s.log.Info("measured", "services", size.services, "latency", latency.rows[len(latency.rows)-1],
			"shards", shards.rows[len(shards.rows)-1], "memory", memory.rows[len(memory.rows)-1])
	}
	return []*table{latency, shards, memory}, nil
}

// addMemory weighs the running agent, one on another node, and a fresh one, which it returns.
func (b *clusterBench) addMemory(ctx context.Context, t *table, size clusterSize, old *agentProcess) (*agentProcess, error) {
	grown, _, err := old.memory()
	if err = errors.Join(err, old.stop()); err != nil {
		return old, err
	}
	there, err := b.startAgent(ctx, "node-elsewhere")
	if err != nil {
		return old, err
	}
	if err := there.ready(ctx); err != nil {
		return there, err
	}
	elsewhere, _, err := there.memory()
	if err = errors.Join(err, there.stop()); err != nil {
		return there, err
	}
	here, err := b.startAgent(ctx, nodeName)
	if err != nil {
		return there, err
	}
	if err := here.ready(ctx); err != nil {
		return here, err
	}
	fresh, peak, err := here.memory()
	goal := ""
	if size.goalMB > 0 {
		goal = strconv.Itoa(size.goalMB)
	}
	t.add(strconv.Itoa(size.services), short(grown), short(fresh), short(peak), short(elsewhere), goal)
	return here, err
}
