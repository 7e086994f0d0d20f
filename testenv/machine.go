// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// maxIfName is IFNAMSIZ less the final zero, from linux/if.h.
const maxIfName = 15

func (t *Topology) buildMachines() error {
	for _, m := range []struct {
		into         **Machine
		node         *Node
		name, port   string
		addr4, addr6 string
	}{
		{&t.Web, t.NodeA, "web", "va0", "10.244.1.10", "fd00:10:244:1::10"},
		{&t.DB, t.NodeA, "db", "vb0", "10.244.1.20", "fd00:10:244:1::20"},
		{&t.Pod, t.NodeA, "pod", "vp0", "10.244.1.50", "fd00:10:244:1::50"},
		{&t.Mail, t.NodeB, "mail", "vc0", "10.244.2.30", "fd00:10:244:2::30"},
	} {
		addrs := []netip.Addr{netip.MustParseAddr(m.addr4), netip.MustParseAddr(m.addr6)}
		machine, err := t.addMachine(m.node, m.name, m.port, addrs)
		if err != nil {
			return err
		}
		*m.into = machine
	}
	return nil
}

// AddMachine makes one more machine behind a node, with a default route for
// each family that it has an address of. The node's interface is "v-" and the
// name, at most 15 bytes together.
func (t *Topology) AddMachine(node *Node, name string, addrs ...netip.Addr) (*Machine, error) {
	port := "v-" + name
	return t.addMachine(node, name, port[:min(len(port), maxIfName)], addrs)
}

// RemoveMachine takes a machine away with its interface on the node and the
// routes to it, as the end of a pod does.
func (t *Topology) RemoveMachine(m *Machine) error {
	// The kernel removes a closed namespace later; the node's end goes now.
	if err := m.Node.NS.DelLink(m.port); err != nil {
		return err
	}
	if m.NodeIf != m.port {
		for _, addr := range m.Addrs {
			if err := errors.Join(m.Node.NS.DelRoute(host(addr)), m.Node.NS.forget(m.NodeIf, addr)); err != nil {
				return err
			}
		}
	}
	t.spaces = slices.DeleteFunc(t.spaces, func(ns *NetNS) bool { return ns == m.NS })
	return m.NS.Close()
}

func (t *Topology) addMachine(node *Node, name, port string, addrs []netip.Addr) (*Machine, error) {
	h, err := t.newHost(name, addrs...)
	if err != nil {
		return nil, err
	}
	m := &Machine{Host: *h, Node: node, NodeIf: port, If: machineIf, port: port}
	gateway := gatewayAddrs()
	if node.bridge != "" {
		m.NodeIf, gateway = node.bridge, nil
	}
	if err := Link(Side{node.NS, port, gateway}, Side{m.NS, m.If, t.machineAddrs(m)}); err != nil {
		return nil, err
	}
	if node.bridge != "" {
		if err := node.NS.addToBridge(port, node.bridge); err != nil {
			return nil, err
		}
	}
	return m, m.route()
}

func (t *Topology) machineAddrs(m *Machine) []netip.Prefix {
	// The link-local address must differ among machines behind one bridge: it
	// ends in what their own address ends in.
	local := netip.MustParseAddr(linkLocal2).As16()
	var list []netip.Prefix
	for _, addr := range m.Addrs {
		bits := addr.BitLen()
		if t.opts.bridgedOnLink {
			bits = podBits(m.Node, addr)
		}
		list = append(list, netip.PrefixFrom(addr, bits))
		full := addr.As16()
		copy(local[12:], full[12:])
		local[8] = 0x02
	}
	return append(list, netip.PrefixFrom(netip.AddrFrom16(local), 64))
}

func podBits(node *Node, addr netip.Addr) int {
	for _, cidr := range node.PodCIDRs {
		if cidr.Contains(addr) {
			return cidr.Bits()
		}
	}
	return addr.BitLen()
}

// route makes the machine and its node reach each other.
func (m *Machine) route() error {
	for _, addr := range m.Addrs {
		f := FamilyOf(addr)
		out := Route{Dst: f.Default(), Dev: m.If, Via: gatewayOn(f)}
		if f == IPv4 {
			out.Src = m.Addr(f)
		}
		if err := m.NS.SetRoute(out); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
		in := Route{Dst: host(addr), Dev: m.NodeIf, Src: m.Node.Addr(f)}
		if err := m.Node.NS.SetRoute(in); err != nil {
			return fmt.Errorf("machine %s: %w", m.Name, err)
		}
	}
	return nil
}

func (t *Topology) addGatewayBridge(node *Node) error {
	if err := node.NS.addBridge(node.bridge); err != nil {
		return err
	}
	for _, addr := range gatewayAddrs() {
		if err := node.NS.AddAddr(node.bridge, addr); err != nil {
			return err
		}
	}
	return nil
}

// gatewayAddrs are what a node has on an interface towards machines: nothing
// that another interface or another node could not have as well.
func gatewayAddrs() []netip.Prefix {
	return []netip.Prefix{
		host(netip.MustParseAddr(machineGW4)),
		netip.MustParsePrefix(linkLocal1 + "/64"),
	}
}

func gatewayOn(f Family) netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr(linkLocal1)
	}
	return netip.MustParseAddr(machineGW4)
}
