// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// untranslatedEnds drops what is still addressed to a public address when it is forwarded: it would go round between node and router
// until its hop limit ends, at the cost of the measurement.
const untranslatedEnds = "add table inet other; add chain inet other forward { type filter hook forward priority 0; }; " +
	"add rule inet other forward ip daddr 203.0.113.0/24 drop"

// addLatency times changes of one Service's address.
func (b *clusterBench) addLatency(ctx context.Context, t *table, services, changes int) (err error) {
	if out, err := b.topo.NodeA.NS.Run(ctx, "nft", untranslatedEnds); err != nil {
		return fmt.Errorf("%s: %w", out, err)
	}
	in, err := udpIn(b.topo.Web.NS, netip.AddrPortFrom(b.topo.Web.Addr4(), probePort))
	if err != nil {
		return err
	}
	arrivals := make(chan arrival, 1)
	var group errgroup.Group
	group.Go(func() error { return receive(in, arrivals) })
	defer func() { err = errors.Join(err, in.Close(), group.Wait()) }()
	var writes, took []float64
	for i := range changes {
		write, total, err := b.change(ctx, i, arrivals)
		if err != nil {
			return fmt.Errorf("change %d: %w", i, err)
		}
		writes, took = append(writes, milliseconds(write)), append(took, milliseconds(total))
	}
	t.add(strconv.Itoa(services), quartiles(writes).String(), quartiles(took).String(), short(percentile(took, 0.99)), short(percentile(took, 1)), "50")
	return nil
}

// change moves the machine to its other address and sends packets, of a new flow, until one of them arrives.
func (b *clusterBench) change(ctx context.Context, i int, arrivals <-chan arrival) (write, total time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	out, err := udpIn(b.topo.Ext.NS, netip.AddrPortFrom(b.topo.Ext.Addr4(), 0))
	if err != nil {
		return 0, 0, err
	}
	defer out.Close() //nolint:errcheck // nothing is buffered
	addr := netip.MustParseAddr([]string{"203.0.113.10", "203.0.113.11"}[i%2])
	start, written := time.Now(), make(chan error, 1)
	go func() {
		err := b.assign(ctx, probeNamespace, probeName, addr.String())
		write = time.Since(start)
		written <- err
	}()
	total, err = untilArrival(ctx, out, netip.AddrPortFrom(addr, probePort), i, start, arrivals)
	return write, total, errors.Join(err, <-written)
}

func untilArrival(ctx context.Context, out *net.UDPConn, to netip.AddrPort, i int, start time.Time, arrivals <-chan arrival) (time.Duration, error) {
	probe, tick := binary.BigEndian.AppendUint32(nil, uint32(i)), time.NewTicker(probeEvery)
	defer tick.Stop()
	for {
		if _, err := out.WriteToUDPAddrPort(probe, to); err != nil {
			return 0, err
		}
		select {
		case a := <-arrivals:
			if a.work != i {
				return 0, fmt.Errorf("a packet of change %d arrived", a.work)
			}
			return a.at.Sub(start), nil
		case <-ctx.Done():
			return 0, fmt.Errorf("no packet to %s arrived: %w", to, ctx.Err())
		case <-tick.C:
		}
	}
}

// receive reports the first packet of each change, until the socket is closed.
func receive(in *net.UDPConn, arrivals chan<- arrival) error {
	buf, last := make([]byte, 4), -1
	for {
		_, _, err := in.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		if i := int(binary.BigEndian.Uint32(buf)); i != last {
			last = i
			arrivals <- arrival{i, time.Now()}
		}
	}
}
