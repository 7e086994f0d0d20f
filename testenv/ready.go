// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// readyTimeout is only met on a machine that is very busy.
const readyTimeout = 10 * time.Second

// awaitReady returns when the interface passes packets. The kernel finishes the
// work for a new link and a new address later, in work queues, and the first
// packet that comes earlier waits for a second transmission.
func (ns *NetNS) awaitReady(ifname string, addrs []netip.Prefix) error {
	err := poll(readyTimeout, func() error {
		return ns.onLink(ifname, func(_ *netlink.Handle, link netlink.Link) error {
			// A bridge forwards from its ports only in this state.
			if state := link.Attrs().OperState; state != netlink.OperUp {
				return fmt.Errorf("state %s", state)
			}
			return nil
		})
	})
	for _, addr := range addrs {
		err = errors.Join(err, ns.awaitListening(ifname, addr.Addr()))
	}
	return err
}

// awaitListening returns when the interface hears neighbour solicitations for
// the address, that is: has joined its multicast group (RFC 4291, 2.7.1).
func (ns *NetNS) awaitListening(ifname string, addr netip.Addr) error {
	if addr.Is4() || ifname == "lo" { // a loopback interface joins no groups
		return nil
	}
	ip := addr.As16()
	group := fmt.Sprintf("ff0200000000000000000001ff%02x%02x%02x", ip[13], ip[14], ip[15])
	return poll(readyTimeout, func() error {
		return ns.Do(func() error {
			table, err := os.ReadFile("/proc/thread-self/net/igmp6")
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(table)) {
				// Index, name, group, users, and more.
				if f := strings.Fields(line); len(f) > 2 && f[1] == ifname && f[2] == group {
					return nil
				}
			}
			return fmt.Errorf("interface %s in namespace %s does not listen for %s", ifname, ns.name, addr)
		})
	})
}
