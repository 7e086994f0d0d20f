// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

// trackingOnly makes the kernel track connections and does nothing else.
const trackingOnly = "add table inet other; add chain inet other watch { type filter hook forward priority 0; }; " +
	"add rule inet other watch ct state established accept"

// plainNAT is the least that translates as the machine needs it: what of the cost is the kernel's translation, and not our table.
const plainNAT = "add table inet other; add chain inet other to { type nat hook prerouting priority dstnat; }; " +
	"add chain inet other from { type nat hook postrouting priority srcnat; }; " +
	"add rule inet other to ip daddr 203.0.113.10 dnat ip to 10.244.1.10; " +
	"add rule inet other to ip6 daddr 2001:db8:203::10 dnat ip6 to fd00:10:244:1::10; " +
	"add rule inet other from ip saddr 10.244.1.10 snat ip to 203.0.113.10; " +
	"add rule inet other from ip6 saddr fd00:10:244:1::10 snat ip6 to 2001:db8:203::10"

// path is a network of its own: a client, a router, a node that forwards, and a machine behind it.
type path struct {
	name string
	topo *testenv.Topology
	// table is ours, where there is one.
	table *nft.Table
	// private is true where the machine is dialled at its own address.
	private bool
}

// foreignPath has rules that are not ours.
func foreignPath(ctx context.Context, name, rules string, private bool) (*path, error) {
	topo, err := testenv.Build(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	if out, err := topo.NodeA.NS.Run(ctx, "nft", rules); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", out, err), topo.Close())
	}
	return &path{name: name, topo: topo, private: private}, nil
}

// translatedPath has our table with that many Services, of which one is the machine's.
func translatedPath(services int) (*path, error) {
	topo, err := testenv.Build(slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	p := &path{name: fmt.Sprintf("%d Services", services), topo: topo}
	if err := p.program(services); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *path) program(services int) error {
	objects := fleet(services-1, services-1)
	web := workload{
		node: nodeName, key: nat.Key{Namespace: "tenant-a", Name: "vm-instance-web"}, whole: true,
		publics: publicAddrs(), backends: p.topo.Web.Addrs,
	}
	web.addTo(objects)
	n, err := node.Open(node.Options{NetNS: p.topo.NodeA.NS.FD()})
	if err != nil {
		return err
	}
	engine := nat.NewEngine(policy(), nil)
	engine.Apply(objects, nat.Facts(n.Facts()))
	interfaces, err := n.TrackBackends(web.backends, nil)
	if err = errors.Join(err, n.Close()); err != nil {
		return err
	}
	engine.SetWorkloads(interfaces)
	if p.table, err = nft.Open(nft.Options{NetNS: p.topo.NodeA.NS.FD()}); err != nil {
		return err
	}
	_, err = p.table.Sync(engine.State())
	return err
}

// publicAddrs are the machine's; the topology routes them to the node.
func publicAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8:203::10")}
}

// machineAddr is what a client dials to reach the machine.
func (p *path) machineAddr(f testenv.Family) netip.Addr {
	if p.private {
		return p.topo.Web.Addr(f)
	}
	for _, a := range publicAddrs() {
		if testenv.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

func (p *path) close() error {
	var err error
	if p.table != nil {
		err = p.table.Close()
	}
	return errors.Join(err, p.topo.Close())
}
