// SPDX-License-Identifier: Apache-2.0

package testenv

import "net/netip"

// Names and addresses that hosts have on their links. The router has the same
// address on all of them; routes to it are on-link by declaration.
const (
	uplinkName  = "up0"
	machineIf   = "eth0"
	bridgeName  = "br0"
	nodeAName   = "node-a"
	nodeBName   = "node-b"
	routerAddr4 = "198.51.100.254"
	routerAddr6 = "2001:db8:100::fe"
	// machineGW4 is what machines have as their next hop, the same on every
	// interface of a node, like the link-local fe80::1.
	machineGW4 = "169.254.1.1"
	linkLocal1 = "fe80::1"
	linkLocal2 = "fe80::2"
)

func (t *Topology) buildRouter() (err error) {
	addrs := []netip.Addr{netip.MustParseAddr(routerAddr4), netip.MustParseAddr(routerAddr6)}
	if t.Router, err = t.newHost("router", addrs...); err != nil {
		return err
	}
	if err := forward(t.Router.NS); err != nil {
		return err
	}
	return t.Router.NS.AddAddr("lo", host(addrs[1]))
}

func (t *Topology) buildClients() (err error) {
	if t.Ext, err = t.addClient("ext", "198.51.100.7", "2001:db8:e::7"); err != nil {
		return err
	}
	t.Ext2, err = t.addClient("ext2", "198.51.100.8", "2001:db8:e::8")
	return err
}

func (t *Topology) addClient(name, addr4, addr6 string) (*Host, error) {
	h, err := t.newHost(name, netip.MustParseAddr(addr4), netip.MustParseAddr(addr6))
	if err != nil {
		return nil, err
	}
	return h, t.joinRouter(h, machineIf, name)
}

func (t *Topology) buildNodes() (err error) {
	if t.NodeA, err = t.addNode(nodeAName, "198.51.100.1", "2001:db8:100::1", "10.244.1.0/24", "fd00:10:244:1::/64"); err != nil {
		return err
	}
	if t.NodeB, err = t.addNode(nodeBName, "198.51.100.2", "2001:db8:100::2", "10.244.2.0/24", "fd00:10:244:2::/64"); err != nil {
		return err
	}
	for _, pair := range [][2]*Node{{t.NodeA, t.NodeB}, {t.NodeB, t.NodeA}} {
		for _, cidr := range pair[1].PodCIDRs {
			route := Route{Dst: cidr, Dev: uplinkName, Via: routerOn(FamilyOf(cidr.Addr()))}
			if err := pair[0].NS.SetRoute(route); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *Topology) addNode(name, addr4, addr6, pods4, pods6 string) (*Node, error) {
	h, err := t.newHost(name, netip.MustParseAddr(addr4), netip.MustParseAddr(addr6))
	if err != nil {
		return nil, err
	}
	node := &Node{
		Host: *h, Uplink: uplinkName, routerIf: name,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(pods4), netip.MustParsePrefix(pods6)},
	}
	if err := forward(h.NS); err != nil {
		return nil, err
	}
	if err := h.NS.setAll(rpFilter(t.opts.rpFilter)); err != nil {
		return nil, err
	}
	if err := t.joinRouter(h, uplinkName, name); err != nil {
		return nil, err
	}
	if t.opts.podRoutes {
		for _, cidr := range node.PodCIDRs {
			if err := t.routeToNode(cidr, node); err != nil {
				return nil, err
			}
		}
	}
	if t.opts.bridge {
		node.bridge = bridgeName
		return node, t.addGatewayBridge(node)
	}
	return node, nil
}

// joinRouter links a host to the router, each with a route to the other.
func (t *Topology) joinRouter(h *Host, ifname, routerIf string) error {
	local := []netip.Prefix{netip.MustParsePrefix(linkLocal2 + "/64")}
	for _, addr := range h.Addrs {
		local = append(local, host(addr))
	}
	router := []netip.Prefix{host(t.Router.Addr4()), netip.MustParsePrefix(linkLocal1 + "/64")}
	if err := Link(Side{h.NS, ifname, local}, Side{t.Router.NS, routerIf, router}); err != nil {
		return err
	}
	for _, addr := range h.Addrs {
		f := FamilyOf(addr)
		if err := h.NS.SetRoute(Route{Dst: f.Default(), Dev: ifname, Via: routerOn(f)}); err != nil {
			return err
		}
		back := Route{Dst: host(addr), Dev: routerIf, Src: t.Router.Addr(f)}
		if err := t.Router.NS.SetRoute(back); err != nil {
			return err
		}
	}
	return nil
}

// routerOn is the router as the next hop on a link.
func routerOn(f Family) netip.Addr {
	if f == IPv6 {
		return netip.MustParseAddr(linkLocal1)
	}
	return netip.MustParseAddr(routerAddr4)
}

func forward(ns *NetNS) error {
	return ns.setAll([]sysctl{{"net/ipv4/ip_forward", "1"}, {"net/ipv6/conf/all/forwarding", "1"}})
}
