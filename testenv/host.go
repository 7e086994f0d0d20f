// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"net/netip"
	"slices"
)

// Family is an IP family, 4 or 6.
type Family uint8

// The two families, for `for _, f := range testenv.Families()`.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both families.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf is the family of an address.
func FamilyOf(addr netip.Addr) Family {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}

// String is "IPv4" or "IPv6", good as the name of a subtest.
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// Host is a namespace that has addresses of its own.
type Host struct {
	NS    *NetNS
	Name  string
	Addrs []netip.Addr
}

// Addr is the first address of the family; the zero Addr if there is none.
func (h *Host) Addr(f Family) netip.Addr {
	i := slices.IndexFunc(h.Addrs, func(a netip.Addr) bool { return FamilyOf(a) == f })
	if i < 0 {
		return netip.Addr{}
	}
	return h.Addrs[i]
}

// Addr4 is the first IPv4 address.
func (h *Host) Addr4() netip.Addr { return h.Addr(IPv4) }

// Addr6 is the first IPv6 address.
func (h *Host) Addr6() netip.Addr { return h.Addr(IPv6) }

// Node is a host that forwards for machines behind it.
type Node struct {
	Host
	// Uplink is the interface towards the router.
	Uplink string
	// PodCIDRs are the ranges whose addresses its machines have.
	PodCIDRs []netip.Prefix
	// routerIf is the other end of Uplink.
	routerIf string
	// bridge is the interface that its bridged machines share, if any.
	bridge string
}

// Machine is a virtual machine or a pod behind a node.
type Machine struct {
	Host
	Node *Node
	// NodeIf is the node's interface behind which the machine is routed; If
	// is the machine's own.
	NodeIf, If string
	// port is the node's end of the veth pair. It differs from NodeIf when the
	// machine is behind a bridge.
	port string
}
