// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/nat"
)

// Codes of warnings, for metrics and scripts.
const (
	WarnForwardingIPv4 = "ForwardingDisabledIPv4"
	WarnForwardingIPv6 = "ForwardingDisabledIPv6"
	WarnReversePath    = "StrictReversePath"
	WarnNoConntrack    = "ConntrackUnavailable"
	WarnConntrackFull  = "ConntrackAlmostFull"
	WarnIPv6Disabled   = "IPv6Disabled"
	WarnUplinkMissing  = "UplinkMissing"
	WarnTenantClosed   = "TenantClosed"
	WarnTenantUplink   = "TenantIsUplink"
)

// almostFull is the share of the connection tracking table, in percent, from which a busy node runs out of entries soon.
const almostFull = 90

// Warning is something about this node that keeps translation from working. It is for people to mend: nothing is changed here.
type Warning struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Warnings looks at the node now. What cannot be read is not warned about, and is the error. The absence of connection tracking
// means something only once a table with NAT rules is loaded, which brings it in.
func (n *Node) Warnings() ([]Warning, error) {
	facts := n.Facts()
	sys := sysctls{}
	err := n.ns.do(func() error { return sys.read(facts.Uplinks) })
	warnings := slices.Concat(forwarding(sys), reversePath(sys, facts.Uplinks), conntrack(sys), ipv6(sys, facts.Uplinks), tenants(facts.Tenants))
	missing, missErr := n.missingUplinks()
	return append(warnings, missing...), errors.Join(err, missErr)
}

// sysctls holds numbers by their path below /proc/sys; what the kernel does not have is not there.
type sysctls map[string]int

const (
	ipv4Forward      = "net/ipv4/ip_forward"
	ipv6Forward      = "net/ipv6/conf/all/forwarding"
	ipv6Disable      = "net/ipv6/conf/all/disable_ipv6"
	rpFilterAll      = "net/ipv4/conf/all/rp_filter"
	conntrackMax     = "net/netfilter/nf_conntrack_max"
	conntrackEntries = "net/netfilter/nf_conntrack_count"
)

func rpFilter(uplink string) string    { return "net/ipv4/conf/" + uplink + "/rp_filter" }
func disableIPv6(uplink string) string { return "net/ipv6/conf/" + uplink + "/disable_ipv6" }

// read must run on a thread in the node's namespace: /proc/sys/net shows that of the reader.
func (s sysctls) read(uplinks []string) error {
	paths := []string{ipv4Forward, ipv6Forward, ipv6Disable, rpFilterAll, conntrackMax, conntrackEntries}
	for _, uplink := range uplinks {
		paths = append(paths, rpFilter(uplink), disableIPv6(uplink))
	}
	var errs []error
	for _, path := range paths {
		data, err := os.ReadFile(filepath.Join("/proc/sys", path))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			s[path], err = strconv.Atoi(strings.TrimSpace(string(data)))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("sysctl %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// is reports whether a parameter exists and has the value.
func (s sysctls) is(path string, value int) bool {
	got, exists := s[path]
	return exists && got == value
}

// sysctlName is the parameter as sysctl(8) takes it: names of interfaces with dots (VLANs) need the form with slashes.
func sysctlName(path string) string {
	if strings.Contains(path, ".") {
		return path
	}
	return strings.ReplaceAll(path, "/", ".")
}

func forwarding(s sysctls) []Warning {
	var list []Warning
	if s.is(ipv4Forward, 0) {
		list = append(list, Warning{WarnForwardingIPv4,
			"IPv4 forwarding is off, nothing reaches a workload from outside: set " + sysctlName(ipv4Forward) + "=1"})
	}
	if s.is(ipv6Forward, 0) && s.is(ipv6Disable, 0) {
		list = append(list, Warning{WarnForwardingIPv6,
			"IPv6 forwarding is off, nothing reaches a workload from outside: set " + sysctlName(ipv6Forward) +
				"=1 (an uplink that takes its default route from router advertisements then needs accept_ra=2)"})
	}
	return list
}

// reversePath: the kernel uses the larger of the value of "all" and that of the interface; 1 is strict, 2 is loose
// (Documentation/networking/ip-sysctl.rst). There is no such filter for IPv6.
func reversePath(s sysctls, uplinks []string) []Warning {
	var list []Warning
	for _, uplink := range uplinks {
		if _, exists := s[rpFilter(uplink)]; !exists || max(s[rpFilterAll], s[rpFilter(uplink)]) != 1 {
			continue
		}
		list = append(list, Warning{WarnReversePath, fmt.Sprintf(
			"the reverse path filter of uplink %s is strict and drops packets of clients that are routed back through another interface: set %s=2",
			uplink, sysctlName(rpFilter(uplink)))})
	}
	if len(list) == 0 && len(uplinks) == 0 && s.is(rpFilterAll, 1) {
		list = append(list, Warning{WarnReversePath,
			"the reverse path filter of all interfaces is strict and drops packets that are routed back through another interface: set " +
				sysctlName(rpFilterAll) + "=2"})
	}
	return list
}

// conntrack: a maximum of 0 is no limit (nf_conntrack_alloc in net/netfilter/nf_conntrack_core.c).
func conntrack(s sysctls) []Warning {
	limit, there := s[conntrackMax]
	if !there {
		return []Warning{{WarnNoConntrack, "the kernel has no connection tracking, nothing is translated: load the module nf_conntrack"}}
	}
	if entries := s[conntrackEntries]; limit > 0 && entries*100 >= limit*almostFull {
		return []Warning{{WarnConntrackFull, fmt.Sprintf(
			"the connection tracking table holds %d of %d entries, new connections fail when it is full: raise %s", entries, limit, sysctlName(conntrackMax))}}
	}
	return nil
}

func ipv6(s sysctls, uplinks []string) []Warning {
	switch value, there := s[ipv6Disable]; {
	case !there:
		return []Warning{{WarnIPv6Disabled, "the kernel has no IPv6, only IPv4 is translated: start it without ipv6.disable=1"}}
	case value != 0:
		return []Warning{{WarnIPv6Disabled, "IPv6 is disabled, only IPv4 is translated: set " + sysctlName(ipv6Disable) + "=0"}}
	}
	var list []Warning
	for _, uplink := range uplinks {
		if s.is(disableIPv6(uplink), 1) {
			list = append(list, Warning{WarnIPv6Disabled,
				"IPv6 is disabled on uplink " + uplink + ": set " + sysctlName(disableIPv6(uplink)) + "=0"})
		}
	}
	return list
}

// tenants tells of interfaces that --tenant-interface matches and that are nobody's.
func tenants(list []nat.Tenant) []Warning {
	var warnings []Warning
	for _, t := range list {
		switch {
		case t.Closed != "":
			warnings = append(warnings, Warning{WarnTenantClosed, fmt.Sprintf(
				"%s is closed, nothing that arrives on it is let in: %s; give --tenant-interface %s=TABLE, put it into a VRF, or add a rule with `ip rule add iif %s lookup TABLE`",
				t.Interface, t.Closed, t.Interface, t.Interface)})
		case t.Outside && t.Interface != loopback:
			warnings = append(warnings, Warning{WarnTenantUplink,
				t.Interface + " is an uplink and no tenant, though --tenant-interface matches its name: give the names of tenants only"})
		}
	}
	return warnings
}

// missingUplinks checks the names that were given, which may well appear later. Rules match the first name of an interface only.
func (n *Node) missingUplinks() ([]Warning, error) {
	var list []Warning
	var errs []error
	for _, uplink := range n.fixed {
		link, err := n.route.LinkByName(uplink)
		var unknown netlink.LinkNotFoundError
		switch {
		case errors.As(err, &unknown):
			list = append(list, Warning{WarnUplinkMissing,
				"there is no interface " + uplink + ", which --uplink names: packets from outside are not recognised until it appears"})
		case err != nil:
			errs = append(errs, fmt.Errorf("uplink %s: %w", uplink, err))
		case link.Attrs().Name != uplink:
			list = append(list, Warning{WarnUplinkMissing,
				fmt.Sprintf("%s, which --uplink names, is another name of the interface %s: use that", uplink, link.Attrs().Name)})
		}
	}
	slices.SortFunc(list, func(a, b Warning) int { return cmp.Compare(a.Message, b.Message) })
	return list, errors.Join(errs...)
}
