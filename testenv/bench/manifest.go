// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
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
	"sigs.k8s.io/yaml"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// probeEvery is the distance of the packets that look for the translation, and so the resolution of the measurement.
const probeEvery = 100 * time.Microsecond

// probePort is where the machine waits for them.
const probePort = 7000

// follow is a whole agent on a directory of manifests, a client that sends, and a machine that receives.
type follow struct {
	dir  string
	topo *testenv.Topology
	// works are Services that have an address and, until their file changes, no backend: packets to them are dropped.
	works    []workload
	out, in  *net.UDPConn
	arrivals chan arrival
}

// arrival is the first packet to the address of a work.
type arrival struct {
	work int
	at   time.Time
}

func measureManifest(ctx context.Context, s settings) (tables []*table, err error) {
	f := &follow{arrivals: make(chan arrival, s.files)}
	if f.topo, err = testenv.Build(slog.New(slog.DiscardHandler)); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.topo.Close()) }()
	if f.dir, err = os.MkdirTemp("", "natplane-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(f.dir)) }()
	if err := f.writeAll(s.files); err != nil {
		return nil, err
	}
	if err := f.openSockets(); err != nil {
		return nil, err
	}
	defer f.out.Close() //nolint:errcheck // only read from and written to
	took, err := f.withAgent(ctx, s.files)
	if err != nil {
		return nil, err
	}
	t := newTable("Milliseconds from writing a changed manifest file to the arrival of the first translated packet.",
		"changes", "median (quartiles)", "p99", "smallest", "largest")
	t.add(fmt.Sprint(s.files), quartiles(took).String(), short(percentile(took, 0.99)), short(percentile(took, 0)), short(percentile(took, 1)))
	return []*table{t}, nil
}

// writeAll makes the directory as it is before any change: one file for each Service, one for the pod.
func (f *follow) writeAll(count int) error {
	for i := range count {
		w := machine(2 * i) // those with the whole address
		w.key = nat.Key{Namespace: "tenant-a", Name: fmt.Sprintf("web-%d", i)}
		w.backends = []netip.Addr{f.topo.Web.Addr4()}
		if err := f.topo.Announce(w.publics[0], f.topo.NodeA); err != nil {
			return err
		}
		f.works = append(f.works, w)
		if err := f.writeWork(i, false); err != nil {
			return err
		}
	}
	pod, err := document(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, f.works[0].pod())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(f.dir, "pod.yaml"), pod, 0o644)
}

func (f *follow) writeWork(i int, serving bool) error {
	w := f.works[i]
	var endpoints []netip.Addr
	if serving {
		endpoints = w.backends
	}
	service, err := document(schema.GroupVersionKind{Version: "v1", Kind: "Service"}, w.service())
	if err != nil {
		return err
	}
	slice, err := document(schema.GroupVersionKind{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}, w.slice(0, endpoints...))
	if err != nil {
		return err
	}
	text := bytes.Join([][]byte{service, slice}, []byte("---\n"))
	return os.WriteFile(filepath.Join(f.dir, w.key.Name+".yaml"), text, 0o644)
}

// document is an object as a manifest.
func document(kind schema.GroupVersionKind, object interface{ GetObjectKind() schema.ObjectKind }) ([]byte, error) {
	object.GetObjectKind().SetGroupVersionKind(kind)
	return yaml.Marshal(object)
}

func (f *follow) openSockets() error {
	open := func(ns *testenv.NetNS, at netip.AddrPort) (conn *net.UDPConn, err error) {
		err = ns.Do(func() (err error) {
			conn, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		})
		return conn, err
	}
	var err error
	if f.in, err = open(f.topo.Web.NS, netip.AddrPortFrom(f.topo.Web.Addr4(), probePort)); err != nil {
		return err
	}
	if f.out, err = open(f.topo.Ext.NS, netip.AddrPortFrom(f.topo.Ext.Addr4(), 0)); err != nil {
		return errors.Join(err, f.in.Close())
	}
	return nil
}

// withAgent starts the agent and times the changes.
func (f *follow) withAgent(ctx context.Context, count int) (took []float64, err error) {
	ctx, stop := context.WithCancel(ctx)
	var group errgroup.Group
	defer func() { stop(); err = errors.Join(err, f.in.Close(), group.Wait()) }()
	source, err := manifests.Open(f.dir, nil)
	if err != nil {
		return nil, err
	}
	a, err := agent.New(agent.Options{Policy: policy(), NetNS: f.topo.NodeA.NS.FD(), Source: quietSource{source}})
	if err != nil {
		return nil, err
	}
	group.Go(func() error { return a.Run(ctx) })
	group.Go(f.receive)
	if err := waitReady(ctx, a); err != nil {
		return nil, err
	}
	for i := range count {
		d, err := f.change(ctx, i)
		if err != nil {
			return nil, fmt.Errorf("change %d: %w", i, err)
		}
		took = append(took, milliseconds(d))
	}
	return took, nil
}

// quietSource is a directory of manifests that are known to be good.
type quietSource struct{ *manifests.Source }

func (quietSource) Problems() []string { return []string{} }

func waitReady(ctx context.Context, a *agent.Agent) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !a.Health().Ready {
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent is not ready: %+v: %w", a.Health(), ctx.Err())
		case <-tick.C:
		}
	}
	return nil
}

// change writes one file and sends packets until one of them is translated.
func (f *follow) change(ctx context.Context, i int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	probe, to := binary.BigEndian.AppendUint32(nil, uint32(i)), netip.AddrPortFrom(f.works[i].publics[0], probePort)
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	start := time.Now()
	if err := f.writeWork(i, true); err != nil {
		return 0, err
	}
	for {
		if _, err := f.out.WriteToUDPAddrPort(probe, to); err != nil {
			return 0, err
		}
		select {
		case a := <-f.arrivals:
			if a.work != i {
				return 0, fmt.Errorf("a packet to address %d arrived", a.work)
			}
			return a.at.Sub(start), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
	}
}

// receive reports the first packet to each address, until the socket is closed.
func (f *follow) receive() error {
	buf, last := make([]byte, 4), -1
	for {
		_, _, err := f.in.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if work := int(binary.BigEndian.Uint32(buf)); work != last {
			last = work
			f.arrivals <- arrival{work, time.Now()}
		}
	}
}
