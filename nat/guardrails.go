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
	// Tenants are the interfaces that --tenant-interface is about, sorted; see Tenants.Resolve.
	Tenants []Tenant
}

// Equal reports whether both say the same.
func (f Facts) Equal(o Facts) bool {
	return slices.Equal(f.Addresses, o.Addresses) && slices.Equal(f.Uplinks, o.Uplinks) && slices.Equal(f.Tenants, o.Tenants)
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
	// agents are the Nodes that run the agent, sorted; nil when no Node object tells.
	agents []string
	// firstNode is the first of them, which reports on Services without a backend; this node itself when nobody knows better.
	firstNode string
}

// runsAgent reports whether the agent runs on a node, as far as one can know.
func (g *guardrails) runsAgent(node string) bool {
	if g.agents == nil {
		return true
	}
	_, found := slices.BinarySearch(g.agents, node)
	return found
}

// sameReporters reports whether each verdict has the same reporter with both.
func (g *guardrails) sameReporters(o *guardrails) bool {
	return g.firstNode == o.firstNode && slices.Equal(g.agents, o.agents)
}

// newGuardrails draws them from the configuration, all Node objects and this node's interfaces.
//
// A host-length address (/32, /128) of an interface does not count as a node address unless the Node object lists it: announcers put
// public addresses on interfaces in that form.
func newGuardrails(c Config, nodes map[string]*nodeFacts, facts Facts) *guardrails {
	g := &guardrails{nodes: map[netip.Addr]string{}, reserved: c.Reserved, firstNode: c.Node}
	var cluster, masquerade []NamedRange
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		if nodes[name].agent {
			g.agents = append(g.agents, name)
		}
		for _, a := range nodes[name].addresses {
			g.nodes[a] = "an address of node " + name
		}
		for _, p := range nodes[name].podCIDRs {
			cluster = append(cluster, NamedRange{RangeOf(p), "pods of node " + name})
		}
	}
	if len(g.agents) > 0 {
		g.firstNode = g.agents[0]
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
