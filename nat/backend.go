// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// choice is the backend of a Service in one family (R3, R4).
type choice struct {
	addr netip.Addr // invalid: none
	rank rank
	// local is true when the best-ranked endpoint of addr is on this node.
	local bool
	// workload has addr on this node, best-ranked or outranked without rivals; nil when there is none.
	workload *workload
	// nodes are those with a best-ranked endpoint of addr, sorted; without a choice, all nodes that an endpoint names, best first.
	nodes []string
	// rivals are the best-ranked addresses when there are several.
	rivals []netip.Addr
	// outranked is true when this node has an endpoint of addr that ranks lower than another node's.
	outranked bool
	// unvouched is true when the backend is elsewhere and must not be translated to before the agent of its node vouches for it.
	unvouched bool
	// verified are the endpoints that a Pod of this node has, whatever their rank, sorted.
	verified []netip.Addr
	// targets are the target ports that the chosen endpoint's slices resolve, by name and protocol.
	targets []servicePort
	// refused says which endpoints do not count, and why.
	refused []string
}

func (c choice) found() bool { return c.addr.IsValid() }

// servesPorts reports whether PortList ingress may use the backend.
func (c choice) servesPorts() bool { return c.found() && c.rank <= serving }

func (c choice) equal(o choice) bool {
	return c.addr == o.addr && c.rank == o.rank && c.local == o.local && c.outranked == o.outranked &&
		c.unvouched == o.unvouched && slices.Equal(c.verified, o.verified) &&
		slices.Equal(c.nodes, o.nodes) && slices.Equal(c.rivals, o.rivals) && slices.Equal(c.targets, o.targets) &&
		slices.Equal(c.refused, o.refused)
}

// target returns the port that the endpoint listens on for a Service port.
func (c choice) target(p servicePort) (uint16, bool) {
	for _, t := range c.targets {
		if t.name == p.name && t.protocol == p.protocol {
			return t.port, true
		}
	}
	return 0, false
}

// vouchers says what this node knows about endpoint addresses.
type vouchers struct {
	node string
	// nodeAddresses says why an address belongs to a node.
	nodeAddresses map[netip.Addr]string
	// programmed reports whether the backend is what the Service's addresses translate to already.
	programmed func(a netip.Addr) bool
}

// accepted is an endpoint that counts, with the slice that lists it.
type accepted struct {
	endpoint
	slice *endpointSlice
}

// chooseBackend recomputes the union over all slices of a Service in one family; slices must be sorted by name.
func chooseBackend(slicesOfService []*endpointSlice, f family, v vouchers) choice {
	var c choice
	counted := make([]accepted, 0, 4) // few enough to need no memory of their own in nearly every Service
	for _, s := range slicesOfService {
		if s.family != f {
			continue
		}
		c.refused = append(c.refused, s.problems...)
		for _, e := range s.endpoints {
			if why := v.refuses(s.key.Namespace, e); why != "" {
				c.refused = append(c.refused, why)
				c.nodes = append(c.nodes, e.node)
				continue
			}
			counted = append(counted, accepted{e, s})
			if e.node == v.node {
				c.verified = append(c.verified, e.addr)
			}
		}
	}
	c.verified = sortAddrs(c.verified)
	c.refused = compactSorted(c.refused)
	if len(counted) == 0 {
		c.nodes = compactSorted(c.nodes)
		return c
	}
	c.pick(counted, v)
	return c
}

// refuses returns why an endpoint does not count, or "".
func (v vouchers) refuses(namespace string, e endpoint) string {
	if why := v.nodeAddresses[e.addr]; why != "" {
		return fmt.Sprintf("endpoint %s is %s", e.addr, why)
	}
	if e.node == v.node && !e.workload.vouches(namespace) {
		return fmt.Sprintf("endpoint %s: no running Pod of namespace %s on node %s has this address", e.addr, namespace, v.node)
	}
	return ""
}

// pick settles which of the best-ranked addresses is the backend.
func (c *choice) pick(counted []accepted, v vouchers) {
	slices.SortStableFunc(counted, func(a, b accepted) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.node, b.node), a.addr.Compare(b.addr))
	})
	c.rank = counted[0].rank
	var best []netip.Addr
	for _, e := range counted {
		if e.rank == c.rank {
			best = append(best, e.addr)
		}
	}
	slices.SortFunc(best, netip.Addr.Compare)
	best = slices.Compact(best)
	if len(best) == 1 {
		c.addr = best[0]
	} else {
		c.rivals = best
		if i := slices.IndexFunc(best, v.programmed); i >= 0 {
			c.addr = best[i]
		}
	}
	c.nodes = nil
	for _, e := range counted {
		if e.rank == c.rank && (e.addr == c.addr || !c.found()) {
			c.nodes = append(c.nodes, e.node)
		}
	}
	c.nodes = compactSorted(c.nodes)
	if !c.found() {
		return
	}
	// They are sorted by rank: the first one here is the best one here.
	if here := slices.IndexFunc(counted, func(e accepted) bool { return e.addr == c.addr && e.node == v.node }); here >= 0 {
		c.local = counted[here].rank == c.rank
		c.outranked = !c.local
		// What an ambiguity leaves elsewhere is not known any more after a restart, and must make no difference before it.
		if c.local || len(c.rivals) == 0 {
			c.workload = counted[here].workload
		}
	}
	c.resolveTargets(counted)
}

// resolveTargets unites the ports of the slices that list the chosen endpoint; where an update is half done and they differ, the
// better-ranked endpoint's slice decides, then the first by name.
func (c *choice) resolveTargets(counted []accepted) {
	shared := false
	for _, e := range counted {
		switch {
		case e.addr != c.addr:
		case c.targets == nil:
			c.targets, shared = e.slice.ports, true
		default:
			if shared {
				c.targets, shared = slices.Clone(c.targets), false
			}
			c.targets = append(c.targets, e.slice.ports...)
		}
	}
	if !shared {
		c.targets = distinctTargets(c.targets)
	}
}

func compactSorted(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}
