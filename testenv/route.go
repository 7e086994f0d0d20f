// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Route is a route of the main table.
type Route struct {
	Dst netip.Prefix
	Dev string
	// Via is the next hop, taken to be on the link. None: Dst itself is.
	Via netip.Addr
	// Src is the source that the kernel prefers for its own packets, if valid.
	Src netip.Addr
}

// Default is the prefix of the default route of one family.
func (f Family) Default() netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// SetRoute adds a route, or moves the one with the same destination.
func (ns *NetNS) SetRoute(r Route) error {
	return ns.onLink(r.Dev, func(nl *netlink.Handle, link netlink.Link) error {
		if err := nl.RouteReplace(r.netlink(link.Attrs().Index)); err != nil {
			return fmt.Errorf("route to %s: %w", r.Dst, err)
		}
		return nil
	})
}

// DelRoute removes the route to a destination, whatever its next hop.
func (ns *NetNS) DelRoute(dst netip.Prefix) error {
	nl, err := ns.Netlink()
	if err != nil {
		return err
	}
	// To the kernel, a scope of nowhere matches every scope.
	if err := nl.RouteDel(&netlink.Route{Dst: ipNet(dst), Scope: netlink.SCOPE_NOWHERE}); err != nil {
		return fmt.Errorf("remove route to %s in namespace %s: %w", dst, ns.name, err)
	}
	return nil
}

func (r Route) netlink(index int) *netlink.Route {
	route := &netlink.Route{LinkIndex: index, Dst: ipNet(r.Dst)}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
		route.SetFlag(netlink.FLAG_ONLINK)
	} else if r.Dst.Addr().Is4() {
		route.Scope = netlink.SCOPE_LINK
	}
	if r.Src.IsValid() {
		route.Src = r.Src.AsSlice()
	}
	return route
}
