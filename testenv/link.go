// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Side is one end of a link: an interface to be made in a namespace.
type Side struct {
	NS    *NetNS
	Name  string
	Addrs []netip.Prefix
}

// Link makes a veth pair between two namespaces, sets the addresses and brings
// both ends up. Both are usable when it returns.
func Link(a, b Side) error {
	err := link(a, b)
	if err != nil {
		return fmt.Errorf("link %s/%s to %s/%s: %w", a.NS.name, a.Name, b.NS.name, b.Name, err)
	}
	return nil
}

func link(a, b Side) error {
	nl, err := a.NS.Netlink()
	if err != nil {
		return err
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: a.Name})
	veth.PeerName, veth.PeerNamespace = b.Name, netlink.NsFd(b.NS.FD())
	if err := nl.LinkAdd(veth); err != nil {
		return err
	}
	for _, side := range []Side{a, b} {
		if err := side.NS.SetUp(side.Name, true); err != nil {
			return err
		}
		for _, addr := range side.Addrs {
			if err := side.NS.addAddr(side.Name, addr); err != nil {
				return err
			}
		}
	}
	return errors.Join(a.NS.awaitReady(a.Name, a.Addrs), b.NS.awaitReady(b.Name, b.Addrs))
}

// SetUp brings an interface up or down.
func (ns *NetNS) SetUp(ifname string, up bool) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		if up {
			return nl.LinkSetUp(link)
		}
		return nl.LinkSetDown(link)
	})
}

// SetMTU sets the size in bytes of the largest packet of an interface.
func (ns *NetNS) SetMTU(ifname string, mtu int) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		return nl.LinkSetMTU(link, mtu)
	})
}

// AddAddr gives an interface an address, usable at once.
func (ns *NetNS) AddAddr(ifname string, addr netip.Prefix) error {
	if err := ns.addAddr(ifname, addr); err != nil {
		return err
	}
	return ns.awaitListening(ifname, addr.Addr())
}

func (ns *NetNS) addAddr(ifname string, addr netip.Prefix) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		return nl.AddrAdd(link, ifaceAddr(addr))
	})
}

// DelAddr takes an address from an interface.
func (ns *NetNS) DelAddr(ifname string, addr netip.Prefix) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		return nl.AddrDel(link, ifaceAddr(addr))
	})
}

// DelLink removes an interface and, for a veth, its peer.
func (ns *NetNS) DelLink(ifname string) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		return nl.LinkDel(link)
	})
}

func (ns *NetNS) onLink(ifname string, f func(*netlink.Handle, netlink.Link) error) error {
	nl, err := ns.Netlink()
	if err != nil {
		return err
	}
	link, err := nl.LinkByName(ifname)
	if err == nil {
		err = f(nl, link)
	}
	if err != nil {
		return fmt.Errorf("interface %s in namespace %s: %w", ifname, ns.name, err)
	}
	return nil
}

func ifaceAddr(addr netip.Prefix) *netlink.Addr {
	a := &netlink.Addr{IPNet: ipNet(addr)}
	switch {
	case addr.Addr().Is6():
		a.Flags = unix.IFA_F_NODAD
	case addr.Addr().IsLinkLocalUnicast():
		// Never the source of what leaves by another interface.
		a.Scope = unix.RT_SCOPE_LINK
	}
	return a
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// host is the prefix that holds one address.
func host(addr netip.Addr) netip.Prefix { return netip.PrefixFrom(addr, addr.BitLen()) }
