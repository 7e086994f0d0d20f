// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
)

// resolveServices looks again at the dirty Services and marks the addresses and backends that they bear on, before and after.
func (e *Engine) resolveServices(d *dirty) {
	for _, n := range d.services {
		n.unresolved = false
		before := n.resolution
		var after *resolution
		if n.service != nil {
			after = e.resolve(n)
		}
		if before.equal(after) {
			continue
		}
		n.resolution = after
		d.verdict(n)
		n.attach(before, after, d)
		for _, r := range []*resolution{before, after} {
			if r == nil {
				continue
			}
			for _, c := range r.permitted {
				d.claim(c)
			}
		}
	}
}

// resolve settles which addresses a Service may claim and which backend it has in each family.
func (e *Engine) resolve(n *entry) *resolution {
	s := n.service
	r := &resolution{service: s}
	for _, f := range families {
		r.choices[f] = chooseBackend(n.slices, f, vouchers{
			node:          e.config.Node,
			nodeAddresses: e.rails.nodes,
			programmed:    func(a netip.Addr) bool { return e.isProgrammed(n, f, a) },
		})
		r.choices[f].unvouched = e.unvouched(s, r.choices[f])
	}
	r.permitted = n.claims
	for i, c := range n.claims {
		why := e.forbids(n, c.addr)
		switch {
		case why == "" && len(r.refused) == 0:
		case why == "":
			r.permitted = append(r.permitted, c)
		default:
			if len(r.refused) == 0 {
				r.permitted = slices.Clone(n.claims[:i])
			}
			r.refused = append(r.refused, why)
		}
	}
	return r
}

// forbids returns why a Service may not claim an address, or "". A backend's own address is known where its Pod is known, on its own
// node, and from the Service's own slices everywhere; the slices of other Services are not asked, or a hand-written one could take an
// address away from its owner.
func (e *Engine) forbids(n *entry, a netip.Addr) string {
	if why := e.rails.mayBePublic(a); why != "" {
		return why
	}
	if w := e.workloads[a]; w != nil && len(w.pods) > 0 {
		return a.String() + " is the address of a Pod on this node"
	}
	if n.lists(a) {
		return a.String() + " is the Service's own endpoint"
	}
	return ""
}

// isProgrammed reports whether the Service's addresses translate to the backend already: since an earlier pass, or in the kernel that
// the agent found when it started. A backend that was chosen while the Service held no address has never been programmed.
func (e *Engine) isProgrammed(n *entry, f family, backend netip.Addr) bool {
	if before := n.resolution; before != nil && before.choices[f].found() {
		return before.choices[f].addr == backend && n.held(f)
	}
	return slices.ContainsFunc(n.service.addresses, func(a netip.Addr) bool {
		return familyOf(a) == f && slices.Contains(e.hints[a], backend)
	})
}

// held reports whether the last pass granted the Service something of an address of the family.
func (n *entry) held(f family) bool {
	return slices.ContainsFunc(n.resolution.permitted, func(c *claim) bool {
		g := c.grantTo(n)
		return familyOf(c.addr) == f && g != nil && g.any()
	})
}

// attach puts the Service to its local backends.
func (n *entry) attach(before, after *resolution, d *dirty) {
	for _, w := range before.localBackends() {
		if w != nil {
			w.attached = without(w.attached, n)
			d.workload(w)
		}
	}
	for _, w := range after.localBackends() {
		if w != nil {
			w.attached = append(w.attached, n)
			d.workload(w)
		}
	}
}

// settleClaims divides the dirty addresses anew and returns the records that changed.
func (e *Engine) settleClaims(d *dirty) []Change[Address] {
	var changes []Change[Address]
	for _, c := range d.claims {
		c.unsettled = false
		shard := e.shardClaims[c.addr]
		if shard != nil || e.served != nil && e.served.addresses[familyOf(c.addr)] == c.addr {
			d.host, d.shards = true, true
		}
		c.divide(shard)
		for i := range c.grants {
			n := c.grants[i].entry
			d.verdict(n)
			// What an address can lend its claimants' backends depends on who holds it.
			for _, w := range n.resolution.localBackends() {
				if w != nil {
					d.workload(w)
				}
			}
		}
		before, after := c.record, newAddress(c.addr, c.grants)
		if shard != nil && oldestHolder(c.grants) == nil {
			after = nil // the shard's: it is in the host record of the shard's node
		}
		if len(c.wanted) == 0 {
			delete(e.claims, c.addr)
		}
		if sameRecord(before, after, Address.Equal) {
			continue
		}
		c.record = after
		changes = append(changes, Change[Address]{Old: before, New: after})
		if before != nil {
			for _, a := range before.Attached {
				d.workload(e.workloads[a])
			}
		}
	}
	slices.SortFunc(changes, func(x, y Change[Address]) int { return x.either().Public.Compare(y.either().Public) })
	return changes
}

// settleWorkloads chooses the primaries of the dirty backends anew and returns the records that changed.
func (e *Engine) settleWorkloads(d *dirty) []Change[Backend] {
	var changes []Change[Backend]
	for _, w := range d.workloads {
		w.unsettled = false
		before, after := w.record, w.backend()
		for _, n := range w.attached {
			d.verdict(n)
		}
		if len(w.pods)+len(w.listed) == 0 {
			delete(e.workloads, w.addr)
		}
		if sameRecord(before, after, func(a, b Backend) bool { return a == b }) {
			continue
		}
		w.record = after
		changes = append(changes, Change[Backend]{Old: before, New: after})
	}
	slices.SortFunc(changes, func(x, y Change[Backend]) int { return x.either().Addr.Compare(y.either().Addr) })
	return changes
}

// settleHost returns the change of what holds for the node as a whole.
func (e *Engine) settleHost(d *dirty) *Change[Host] {
	if !d.host {
		return nil
	}
	before := e.host
	after := &Host{
		Cluster:    e.rails.cluster,
		Masquerade: e.rails.masquerade,
		IPv4:       e.rails.self[ipv4],
		IPv6:       e.rails.self[ipv6],
		Uplinks:    e.facts.Uplinks,
		Workloads:  e.interfaces,
	}
	e.settleShard(after)
	if sameRecord(before, after, Host.Equal) {
		return nil
	}
	e.host = after
	return &Change[Host]{Old: before, New: after}
}

// localBackends are those of either family, nil where there is none.
func (r *resolution) localBackends() [2]*workload {
	if r == nil {
		return [2]*workload{}
	}
	return [2]*workload{r.choices[ipv4].workload, r.choices[ipv6].workload}
}

func (r *resolution) equal(o *resolution) bool {
	if r == nil || o == nil {
		return r == o
	}
	return r.service == o.service && slices.Equal(r.permitted, o.permitted) && slices.Equal(r.refused, o.refused) &&
		r.choices[ipv4].equal(o.choices[ipv4]) && r.choices[ipv6].equal(o.choices[ipv6])
}

func (c Change[T]) either() *T {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

func sameRecord[T any](a, b *T, equal func(T, T) bool) bool {
	if a == nil || b == nil {
		return a == b
	}
	return equal(*a, *b)
}

func sortAddrs(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
