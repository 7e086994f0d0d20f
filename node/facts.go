// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// Facts are what policy needs to know about this node. The slices are shared: read them only.
//
// Addresses are those of all interfaces, each once. Left out are 127.0.0.0/8, ::1 and link-local ranges, which exist on every node;
// whatever scope the administrator gave an address does not matter, as the kernel delivers all of them locally. Uplinks are the interfaces
// of the unicast default routes of both families in the main table, or the fixed ones, whether they exist or not. Tenants are the interfaces
// that Options.Tenants match, with the table of each as VRFs and routing rules give it.
type Facts = nat.Facts

func (n *Node) readFacts() (Facts, error) {
	addresses, err := n.readAddresses()
	if err != nil {
		return Facts{}, fmt.Errorf("addresses: %w", err)
	}
	uplinks := n.fixed
	if uplinks == nil {
		if uplinks, err = n.readUplinks(); err != nil {
			return Facts{}, fmt.Errorf("default routes: %w", err)
		}
	}
	tenants, err := n.readTenants(uplinks)
	if err != nil {
		return Facts{}, fmt.Errorf("interfaces of tenants: %w", err)
	}
	return Facts{Addresses: addresses, Uplinks: uplinks, Tenants: tenants}, nil
}

func (n *Node) readAddresses() ([]netip.Prefix, error) {
	list, err := n.route.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, err
	}
	var addresses []netip.Prefix
	for _, a := range list {
		if a.IPNet == nil {
			continue
		}
		addr, ok := toAddr(a.IP)
		if !ok || !addr.IsGlobalUnicast() {
			continue
		}
		ones, _ := a.Mask.Size()
		addresses = append(addresses, netip.PrefixFrom(addr, ones))
	}
	slices.SortFunc(addresses, netip.Prefix.Compare)
	return slices.Compact(addresses), nil
}

func (n *Node) readUplinks() ([]string, error) {
	found := map[int]struct{}{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		main := &netlink.Route{Table: unix.RT_TABLE_MAIN}
		err := n.dumps.RouteListFilteredIter(family, main, netlink.RT_FILTER_TABLE, func(r netlink.Route) bool {
			if isDefault(r) {
				addLinks(found, r)
			}
			return true
		})
		// EOPNOTSUPP: a kernel started with ipv6.disable=1. ENOENT: no route was ever in the table.
		if err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
	}
	uplinks := map[string]struct{}{}
	for index := range found {
		// An interface that vanished since is none any more; the event of that is on its way.
		if name, err := n.names.of(index); err == nil && name != loopback {
			uplinks[name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(uplinks)), nil
}

// loopback can be the device of a default route that swallows packets; it leads nowhere.
const loopback = "lo"

// isDefault leaves out blackhole, unreachable and prohibit routes, which lead nowhere.
func isDefault(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST {
		return false
	}
	if r.Dst == nil {
		return true
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// addLinks counts dead and carrierless next hops too: they are uplinks again any moment.
func addLinks(found map[int]struct{}, r netlink.Route) {
	if r.LinkIndex > 0 {
		found[r.LinkIndex] = struct{}{}
	}
	for _, hop := range r.MultiPath {
		if hop.LinkIndex > 0 {
			found[hop.LinkIndex] = struct{}{}
		}
	}
}

func toAddr(ip net.IP) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(ip)
	return addr.Unmap(), ok
}
