// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/natplane/natplane/testenv"
)

// load is a kind of traffic. Its streams are open on all paths at once, and run one after the other.
type load struct {
	name string
	// unit is what the amount is divided by for people.
	unit     float64
	unitName string
	family   testenv.Family
	outwards bool
	port     uint16
	open     func(from, to end) (stream, error)
}

func loads() []load {
	return []load{
		{"TCP to the machine", 1e9 / 8, "Gbit/s", testenv.IPv4, false, 5001, openTCP},
		{"TCP from the machine", 1e9 / 8, "Gbit/s", testenv.IPv4, true, 5002, openTCP},
		{"UDP to the machine", 1e3, "kpps", testenv.IPv4, false, 5003, openUDP},
		{"UDP from the machine", 1e3, "kpps", testenv.IPv4, true, 5004, openUDP},
		{"UDP to the machine, IPv6", 1e3, "kpps", testenv.IPv6, false, 5005, openUDP},
	}
}

// stream opens the load on a path.
func (l load) stream(p *path) (stream, error) {
	client := end{host: p.topo.Ext, addr: netip.AddrPortFrom(p.topo.Ext.Addr(l.family), l.port)}
	machine := end{host: &p.topo.Web.Host, addr: netip.AddrPortFrom(p.machineAddr(l.family), l.port)}
	if l.outwards {
		return l.open(machine, client)
	}
	return l.open(client, machine)
}

const manyServices = 100_000

func measureTraffic(ctx context.Context, s settings) (tables []*table, err error) {
	var paths []*path
	defer func() {
		for _, p := range paths {
			err = errors.Join(err, p.close())
		}
	}()
	for _, build := range []func() (*path, error){
		func() (*path, error) { return foreignPath(ctx, "no table", trackingOnly, true) },
		func() (*path, error) { return foreignPath(ctx, "plain NAT", plainNAT, false) },
		func() (*path, error) { return translatedPath(1) },
		func() (*path, error) { return translatedPath(manyServices) },
	} {
		p, err := build()
		if err != nil {
			return nil, err
		}
		paths = append(paths, p)
	}
	head := []string{"traffic", "unit", "no table", "plain NAT", "1 Service", "100,000 Services", "1 : none", "1 : plain NAT", "100,000 : 1"}
	speed := newTable(fmt.Sprintf("Medians of %d interleaved slices of %v each, then medians (quartiles) of the ratios within each round. "+
		"The goal is 0.97 for 1 : none, and no difference for 100,000 : 1.", s.rounds, s.slice), head...)
	cost := newTable("The same for each second of processor time that the sending and the receiving thread took, with the forwarding "+
		"that the kernel did on their account.", head...)
	for _, l := range loads() {
		wall, cpu, err := l.measure(ctx, s, paths)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.name, err)
		}
		speed.add(l.row(wall)...)
		cost.add(l.row(cpu)...)
	}
	return []*table{speed, cost}, nil
}

// measure runs slices on the paths by turns, in an order that changes, so that what happens on the machine meets all of them.
func (l load) measure(ctx context.Context, s settings, paths []*path) (wall, cpu [][]float64, err error) {
	streams := make([]stream, len(paths))
	defer func() {
		for _, open := range streams {
			if open != nil {
				err = errors.Join(err, open.close())
			}
		}
	}()
	for i, p := range paths {
		if streams[i], err = l.stream(p); err == nil {
			_, err = streams[i].run(s.slice / 5) // windows grow, caches fill
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	wall, cpu = make([][]float64, len(paths)), make([][]float64, len(paths))
	for round := range s.rounds {
		for turn := range paths {
			i := (round + turn) % len(paths)
			carried, err := streams[i].run(s.slice)
			if err = errors.Join(err, ctx.Err()); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", paths[i].name, err)
			}
			wall[i] = append(wall[i], carried.perSecond()/l.unit)
			cpu[i] = append(cpu[i], carried.perCPUSecond()/l.unit)
		}
	}
	return wall, cpu, nil
}

func (l load) row(values [][]float64) []string {
	cells := []string{l.name, l.unitName}
	for _, v := range values {
		cells = append(cells, short(percentile(v, 0.5)))
	}
	none, plain, one, many := values[0], values[1], values[2], values[3]
	return append(cells, ratios(one, none).String(), ratios(one, plain).String(), ratios(many, one).String())
}
