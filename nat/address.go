// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"net/netip"
)

// errFamily and the like say why a string cannot stand for a workload or a public address.
var (
	errEmpty       = errors.New("empty address")
	errMapped      = errors.New("IPv4-mapped IPv6 address")
	errZone        = errors.New("address with a zone")
	errUnspecified = errors.New("unspecified address")
	errLoopback    = errors.New("loopback address")
	errLinkLocal   = errors.New("link-local address")
	errMulticast   = errors.New("multicast address")
	errBroadcast   = errors.New("broadcast address")
)

// family is the index of per-family arrays.
type family int

const (
	ipv4 family = iota
	ipv6
)

var families = [...]family{ipv4, ipv6}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return ipv4
	}
	return ipv6
}

func (f family) String() string {
	if f == ipv4 {
		return "IPv4"
	}
	return "IPv6"
}

// ParseAddress accepts only what can be a unicast address of one machine, in canonical meaning: leading zeros (which other software
// reads as octal), v4-mapped and zoned forms are errors, so that no string can become a wildcard or another machine.
func ParseAddress(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, errEmpty
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q is not an IP address", s)
	}
	switch {
	case a.Zone() != "":
		err = errZone
	case a.Is4In6():
		err = errMapped
	case a.IsUnspecified():
		err = errUnspecified
	case a.IsLoopback():
		err = errLoopback
	case a.IsLinkLocalUnicast():
		err = errLinkLocal
	case a.IsMulticast():
		err = errMulticast
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		err = errBroadcast
	}
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%q: %w", s, err)
	}
	return a, nil
}
