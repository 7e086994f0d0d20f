// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// Facts are what the node's kernel says about the node itself.
type Facts struct {
	// Addresses are those of the node's interfaces with their prefix lengths.
	Addresses []netip.Prefix
	// Uplinks are the interfaces that lead to the outside, sorted.
	Uplinks []string
}

// Equal reports whether both say the same.
func (f Facts) Equal(o Facts) bool {
	return slices.Equal(f.Addresses, o.Addresses) && slices.Equal(f.Uplinks, o.Uplinks)
}

// guardrails are the addresses that must never be captured, and never stand for a workload.
type guardrails struct {
	cluster    []NamedRange
	masquerade []NamedRange
	nodes      map[netip.Addr]string
	public     []Range
	reserved   []netip.Addr
	// self are the addresses that masqueraded connections come from; see Host.
	self [2]netip.Addr
	// firstNode is the name that sorts first among the Node objects, or this node's own when there are none.
	firstNode string
}

// newGuardrails draws them from the configuration, all Node objects and this node's interfaces.
//
// A host-length address (/32, /128) of an interface does not count as a node address unless the Node object lists it: announcers put
// public addresses on interfaces in that form.
func newGuardrails(c Config, nodes map[string]*nodeFacts, facts Facts) *guardrails {
	g := &guardrails{nodes: map[netip.Addr]string{}, reserved: c.Reserved, firstNode: c.Node}
	var cluster, masquerade []NamedRange
	for i, name := range slices.Sorted(maps.Keys(nodes)) {
		if i == 0 {
			g.firstNode = name
		}
		for _, a := range nodes[name].addresses {
			g.nodes[a] = "an address of node " + name
		}
		for _, p := range nodes[name].podCIDRs {
			cluster = append(cluster, NamedRange{RangeOf(p), "pods of node " + name})
		}
	}
	if own := nodes[c.Node]; own != nil {
		for _, f := range families {
			onInterface := slices.ContainsFunc(facts.Addresses, func(p netip.Prefix) bool { return p.Addr() == own.internal[f] })
			if onInterface {
				g.self[f] = own.internal[f]
			}
		}
	}
	for _, p := range facts.Addresses {
		if _, known := g.nodes[p.Addr()]; !known && !p.IsSingleIP() {
			g.nodes[p.Addr()] = "an address of this node"
		}
	}
	for a, reason := range g.nodes {
		r := NamedRange{Range{a, a}, reason}
		cluster, masquerade = append(cluster, r), append(masquerade, r)
	}
	for _, p := range c.ClusterCIDRs {
		cluster = append(cluster, NamedRange{RangeOf(p), "--cluster-cidr"})
	}
	for _, p := range c.MasqueradeCIDRs {
		masquerade = append(masquerade, NamedRange{RangeOf(p), "--masquerade-source-cidr"})
	}
	for _, p := range c.PublicCIDRs {
		g.public = append(g.public, RangeOf(p))
	}
	g.cluster, g.masquerade = mergeNamed(cluster), mergeNamed(masquerade)
	return g
}

// mayBePublic returns why an address must not be captured, or "".
func (g *guardrails) mayBePublic(a netip.Addr) string {
	if why, is := g.nodes[a]; is {
		return fmt.Sprintf("%s is %s", a, why)
	}
	if slices.Contains(g.reserved, a) {
		return fmt.Sprintf("%s is an address of the API server", a)
	}
	if r, in := findRange(g.cluster, a); in {
		return fmt.Sprintf("%s is in the cluster range %s (%s)", a, r.Range, r.Reason)
	}
	if len(g.public) > 0 && !slices.ContainsFunc(g.public, func(r Range) bool { return r.Contains(a) }) {
		return fmt.Sprintf("%s is outside --public-cidr", a)
	}
	return ""
}
