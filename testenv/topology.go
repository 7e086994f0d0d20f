// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
)

// Topology is a router with two clients and two nodes with machines:
//
//	Ext  198.51.100.7 ─┐            ┌─ NodeA 198.51.100.1 ─┬─ Web  10.244.1.10
//	                   ├── Router ──┤   up0                ├─ DB   10.244.1.20
//	Ext2 198.51.100.8 ─┘            │                      └─ Pod  10.244.1.50
//	                                └─ NodeB 198.51.100.2 ─── Mail 10.244.2.30
//
// Every host has an IPv6 address too. The router sends the public addresses to
// the node that hosts their machine; Announce moves them.
type Topology struct {
	Router       *Host
	Ext, Ext2    *Host
	NodeA, NodeB *Node
	// Web, DB and Mail are the managed machines, Pod is a neighbour that
	// nobody manages.
	Web, DB, Pod, Mail *Machine

	log    *slog.Logger
	opts   options
	spaces []*NetNS
}

// NewTopology builds the standard topology for one test. It needs root.
func NewTopology(tb testing.TB, opts ...Option) *Topology {
	tb.Helper()
	RequireRoot(tb)
	topo, err := Build(slog.New(slog.DiscardHandler), opts...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := topo.Close(); err != nil {
			tb.Error(err)
		}
	})
	return topo
}

// Build is NewTopology outside of tests. The caller closes the topology.
func Build(log *slog.Logger, opts ...Option) (*Topology, error) {
	topo := &Topology{log: log, opts: newOptions(opts)}
	for _, step := range []func() error{
		topo.buildRouter, topo.buildClients, topo.buildNodes, topo.buildMachines, topo.announceAll,
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("topology: %w", err), topo.Close())
		}
	}
	return topo, nil
}

// Close removes every namespace of the topology, and with them the links.
func (t *Topology) Close() error {
	var errs []error
	for _, ns := range t.spaces {
		errs = append(errs, ns.Close())
	}
	t.spaces = nil
	return errors.Join(errs...)
}

// Node finds a node by its name.
func (t *Topology) Node(name string) *Node {
	for _, node := range []*Node{t.NodeA, t.NodeB} {
		if node.Name == name {
			return node
		}
	}
	return nil
}

// Announce makes the router send an address to a node, from wherever it was
// sent before.
func (t *Topology) Announce(addr netip.Addr, node *Node) error {
	return t.routeToNode(host(addr), node)
}

// Withdraw makes the router forget an announced address.
func (t *Topology) Withdraw(addr netip.Addr) error { return t.Router.NS.DelRoute(host(addr)) }

func (t *Topology) routeToNode(dst netip.Prefix, node *Node) error {
	via := node.Addr(FamilyOf(dst.Addr()))
	return t.Router.NS.SetRoute(Route{Dst: dst, Dev: node.routerIf, Via: via})
}

func (t *Topology) announceAll() error {
	for node, addrs := range map[*Node][]string{
		t.NodeA: {
			"203.0.113.10", "203.0.113.11", "203.0.113.20", "203.0.113.200",
			"2001:db8:203::10", "2001:db8:203::11", "2001:db8:203::20", "2001:db8:203::200",
		},
		t.NodeB: {"203.0.113.30", "2001:db8:203::30"},
	} {
		for _, addr := range addrs {
			if err := t.Announce(netip.MustParseAddr(addr), node); err != nil {
				return err
			}
		}
	}
	return nil
}

// newHost makes a namespace that the topology closes, with the parameters that
// all of its hosts share.
func (t *Topology) newHost(name string, addrs ...netip.Addr) (*Host, error) {
	ns, err := New(name)
	if err != nil {
		return nil, err
	}
	t.spaces = append(t.spaces, ns)
	t.log.Debug("made a namespace", "name", name, "path", ns.Path())
	if err := ns.setAll(hostSysctls()); err != nil {
		return nil, err
	}
	return &Host{NS: ns, Name: name, Addrs: addrs}, nil
}

// hostSysctls also lifts the limits on ICMP errors, which would make tests
// depend on how many errors were sent before.
func hostSysctls() []sysctl {
	return append(rpFilter("0"), []sysctl{
		{"net/ipv4/conf/all/send_redirects", "0"},
		{"net/ipv4/conf/default/send_redirects", "0"},
		{"net/ipv4/icmp_ratelimit", "0"},
		{"net/ipv6/icmp/ratelimit", "0"},
	}...)
}

func rpFilter(value string) []sysctl {
	return []sysctl{
		{"net/ipv4/conf/all/rp_filter", value},
		{"net/ipv4/conf/default/rp_filter", value},
	}
}
