// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// measureClaim times how long a shard takes from its address to the first packet that leaves with it.
func measureClaim(ctx context.Context, s settings) (t *table, err error) {
	topo, err := testenv.Build(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, topo.Close()) }()
	dir, err := os.MkdirTemp("", "natplane-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &claim{topo: topo, file: filepath.Join(dir, "shard.yaml")}
	if err := c.write(0, ""); err != nil {
		return nil, err
	}
	source, err := manifests.Open(dir, nil)
	if err != nil {
		return nil, err
	}
	a, err := agent.New(agent.Options{Policy: shardPolicy(), NetNS: topo.NodeA.NS.FD(), Source: quietSource{source}})
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	var group errgroup.Group
	defer func() { stop(); err = errors.Join(err, group.Wait()) }()
	group.Go(func() error { return a.Run(ctx) })
	if err := waitReady(ctx, a); err != nil {
		return nil, err
	}
	var took []float64
	for i := range s.files {
		d, err := c.time(ctx, a, i)
		if err != nil {
			return nil, fmt.Errorf("claim %d: %w", i, err)
		}
		took = append(took, milliseconds(d))
	}
	t = newTable("Milliseconds from writing the address of a shard into its manifest to the arrival of the first packet that left with it.",
		"claims", "median (quartiles)", "p99", "smallest", "largest")
	t.add(fmt.Sprint(s.files), quartiles(took).String(), short(percentile(took, 0.99)), short(percentile(took, 0)), short(percentile(took, 1)))
	return t, nil
}

type claim struct {
	topo *testenv.Topology
	file string
}

// write makes the shard a new object each time, because an address is written once.
func (c *claim) write(i int, addr string) error {
	shard := benchShard(addr)
	shard.Name = fmt.Sprintf("bench-%d", i)
	text, err := document(schema.GroupVersionKind{Group: "network.datumapis.com", Version: "v1alpha1", Kind: "EgressShard"}, shard)
	if err != nil {
		return err
	}
	return os.WriteFile(c.file, text, 0o644)
}

// time waits until the i-th shard is there without an address, gives it one, and sends until a packet arrives.
func (c *claim) time(ctx context.Context, a *agent.Agent, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.write(i, ""); err != nil {
		return 0, err
	}
	for unassigned := false; !unassigned; {
		plan, err := a.Plan(ctx)
		if err != nil {
			return 0, err
		}
		for _, v := range plan.Verdicts {
			unassigned = v.Name == fmt.Sprintf("bench-%d", i) && v.Reason == nat.ReasonAddressUnassigned
		}
	}
	_, total, err := firstOfShard(ctx, c.topo.Web, c.topo.Ext, func() error { return c.write(i, shardAddress().String()) })
	return total, err
}

// seen is a packet that arrived, and where from.
type seen struct {
	from netip.AddrPort
	at   time.Time
	err  error
}

// firstOfShard writes the address of a shard, and sends from a machine until a packet arrives with it. Ports are new each time, so that no
// flow of the last one is found.
func firstOfShard(ctx context.Context, from *testenv.Machine, to *testenv.Host, write func() error) (wrote, total time.Duration, err error) {
	in, err := udpIn(to.NS, netip.AddrPortFrom(to.Addr4(), 0))
	if err != nil {
		return 0, 0, err
	}
	defer in.Close() //nolint:errcheck // only read from
	out, err := udpIn(from.NS, netip.AddrPortFrom(from.Addr4(), 0))
	if err != nil {
		return 0, 0, err
	}
	defer out.Close() //nolint:errcheck // only written to
	arrived, written := make(chan seen, 1), make(chan error, 1)
	go func() {
		_, from, err := in.ReadFromUDPAddrPort(make([]byte, 16))
		arrived <- seen{from, time.Now(), err}
	}()
	start := time.Now()
	go func() {
		err := write()
		wrote = time.Since(start)
		written <- err
	}()
	first, err := sendUntil(ctx, out, in.LocalAddr().(*net.UDPAddr).AddrPort(), arrived)
	return wrote, first.at.Sub(start), errors.Join(err, <-written)
}

func sendUntil(ctx context.Context, out *net.UDPConn, to netip.AddrPort, arrived <-chan seen) (seen, error) {
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		if _, err := out.WriteToUDPAddrPort([]byte("probe"), to); err != nil {
			return seen{}, err
		}
		select {
		case s := <-arrived:
			if s.err == nil && s.from.Addr() != shardAddress() {
				s.err = fmt.Errorf("a packet from %s arrived", s.from)
			}
			return s, s.err
		case <-ctx.Done():
			return seen{}, fmt.Errorf("no packet to %s arrived: %w", to, ctx.Err())
		case <-tick.C:
		}
	}
}

func udpIn(ns *testenv.NetNS, at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}
