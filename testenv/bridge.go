// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// addBridge makes a bridge, up, which has no port yet.
func (ns *NetNS) addBridge(name string) error {
	nl, err := ns.Netlink()
	if err != nil {
		return err
	}
	// Snooping would swallow neighbour solicitations until a report was seen.
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}, MulticastSnooping: &snooping}
	if err := nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge %s in namespace %s: %w", name, ns.name, err)
	}
	return ns.SetUp(name, true)
}

func (ns *NetNS) addToBridge(ifname, bridge string) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		master, err := nl.LinkByName(bridge)
		if err != nil {
			return err
		}
		return nl.LinkSetMaster(link, master)
	})
}

// forget removes what the namespace knows of the link address of a neighbour
// that is gone; the next one with its address has another.
func (ns *NetNS) forget(ifname string, addr netip.Addr) error {
	return ns.onLink(ifname, func(nl *netlink.Handle, link netlink.Link) error {
		err := nl.NeighDel(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: addr.AsSlice()})
		if errors.Is(err, unix.ENOENT) {
			return nil // it was never asked for
		}
		return err
	})
}
