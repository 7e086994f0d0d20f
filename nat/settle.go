// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
)

// resolveServices looks again at the dirty Services and marks the addresses and backends that they bear on, before and after.
func (e *Engine) resolveServices(d *dirty) {
	for key := range d.services {
		before := e.resolved[key]
		var after *resolution
		if s := e.services[key]; s != nil {
			after = e.resolve(s, before)
		}
		if before.equal(after) {
			continue
		}
		d.verdicts.add(key)
		e.moveClaims(key, before, after, d)
		e.moveAttachments(key, before, after, d)
		if after == nil {
			delete(e.resolved, key)
		} else {
			e.resolved[key] = after
		}
	}
}

// resolve settles which addresses a Service may claim and which backend it has in each family.
func (e *Engine) resolve(s *service, before *resolution) *resolution {
	r := &resolution{service: s}
	list := e.slices.of(s.key)
	for _, f := range families {
		r.choices[f] = chooseBackend(list, f, vouchers{
			node:        e.config.Node,
			hasPod:      e.pods.vouches,
			nodeAddress: func(a netip.Addr) string { return e.rails.nodes[a] },
			programmed:  func(a netip.Addr) bool { return e.isProgrammed(s, f, before, a) },
		})
		r.choices[f].unvouched = e.unvouched(s, r.choices[f])
	}
	for _, a := range s.addresses {
		if why := e.forbids(a, r.choices[familyOf(a)]); why != "" {
			r.refused = append(r.refused, why)
			continue
		}
		r.permitted = append(r.permitted, a)
	}
	return r
}

// forbids returns why a Service may not claim an address, or "". A backend's own address is known where its Pod is known, on its own
// node, and from the Service's own slices everywhere; the slices of other Services are not asked, or a hand-written one could take an
// address away from its owner.
func (e *Engine) forbids(a netip.Addr, c choice) string {
	if why := e.rails.mayBePublic(a); why != "" {
		return why
	}
	if e.pods.known(a) {
		return a.String() + " is the address of a Pod on this node"
	}
	if _, own := slices.BinarySearchFunc(c.listed, a, netip.Addr.Compare); own {
		return a.String() + " is the Service's own endpoint"
	}
	return ""
}

// isProgrammed reports whether the Service's addresses translate to the backend already: since an earlier pass, or in the kernel that
// the agent found when it started. A backend that was chosen while the Service held no address has never been programmed.
func (e *Engine) isProgrammed(s *service, f family, before *resolution, backend netip.Addr) bool {
	if before != nil && before.choices[f].found() {
		return before.choices[f].addr == backend && e.held(before, f)
	}
	return slices.ContainsFunc(s.addresses, func(a netip.Addr) bool {
		return familyOf(a) == f && slices.Contains(e.hints[a], backend)
	})
}

// held reports whether the last pass granted the Service something of an address of the family.
func (e *Engine) held(r *resolution, f family) bool {
	return slices.ContainsFunc(r.permitted, func(a netip.Addr) bool {
		return familyOf(a) == f && slices.ContainsFunc(e.claims[a].grants, func(g grant) bool {
			return g.service.key == r.service.key && g.any()
		})
	})
}

// moveClaims puts the Service in its place among the claimants of its addresses.
func (e *Engine) moveClaims(key Key, before, after *resolution, d *dirty) {
	if before != nil {
		for _, a := range before.permitted {
			c := e.claims[a]
			c.claimants = slices.DeleteFunc(c.claimants, func(s *service) bool { return s.key == key })
			d.addresses.add(a)
		}
	}
	if after == nil {
		return
	}
	for _, a := range after.permitted {
		c := e.claims[a]
		if c == nil {
			c = &claim{}
			e.claims[a] = c
		}
		at, _ := slices.BinarySearchFunc(c.claimants, after.service, (*service).older)
		c.claimants = slices.Insert(c.claimants, at, after.service)
		d.addresses.add(a)
	}
}

// moveAttachments keeps the index from local backends to Services.
func (e *Engine) moveAttachments(key Key, before, after *resolution, d *dirty) {
	from, to := before.localBackends(), after.localBackends()
	e.attached.move(key, from, to)
	d.backends.add(from...)
	d.backends.add(to...)
}

// settleAddresses divides the dirty addresses anew and returns the records that changed.
func (e *Engine) settleAddresses(d *dirty) []Change[Address] {
	var changes []Change[Address]
	for a := range d.addresses {
		shard := e.shardClaims[a]
		if shard != nil {
			d.host, d.shards = true, true
		}
		c := e.claims[a]
		if c == nil {
			continue // only a shard has to do with it
		}
		before := c.record
		c.grants = divide(c.claimants, shard)
		for _, s := range c.claimants {
			d.verdicts.add(s.key)
			// What an address can lend its claimants' backends depends on who holds it.
			d.backends.add(e.resolved[s.key].localBackends()...)
		}
		after := newAddress(a, c.grants, func(s *service) choice { return e.resolved[s.key].choices[familyOf(a)] })
		if shard != nil && oldestHolder(c.grants) == nil {
			after = nil // the shard's: it is in the host record of the shard's node
		}
		if len(c.claimants) == 0 {
			delete(e.claims, a)
		}
		if sameRecord(before, after, Address.Equal) {
			continue
		}
		c.record = after
		changes = append(changes, Change[Address]{Old: before, New: after})
		if before != nil {
			d.backends.add(before.Attached...)
		}
	}
	slices.SortFunc(changes, func(x, y Change[Address]) int { return x.either().Public.Compare(y.either().Public) })
	return changes
}

// settleBackends chooses the primaries of the dirty backends anew and returns the records that changed.
func (e *Engine) settleBackends(d *dirty) []Change[Backend] {
	var changes []Change[Backend]
	for addr := range d.backends {
		before := e.backends[addr]
		after := newBackend(addr, e.attachments(addr))
		for _, key := range e.attached[addr] {
			d.verdicts.add(key)
		}
		if sameRecord(before, after, func(a, b Backend) bool { return a == b }) {
			continue
		}
		if after == nil {
			delete(e.backends, addr)
		} else {
			e.backends[addr] = after
		}
		changes = append(changes, Change[Backend]{Old: before, New: after})
	}
	slices.SortFunc(changes, func(x, y Change[Backend]) int { return x.either().Addr.Compare(y.either().Addr) })
	return changes
}

// attachments lists the Services of a local backend, the oldest first, with what each may lend.
func (e *Engine) attachments(backend netip.Addr) []attachment {
	f := familyOf(backend)
	var list []attachment
	for _, key := range e.attached[backend] {
		r := e.resolved[key]
		a := attachment{service: r.service}
		for _, public := range r.permitted {
			if familyOf(public) != f {
				continue
			}
			grants := e.claims[public].grants
			mine := slices.IndexFunc(grants, func(g grant) bool { return g.service.key == key })
			if mine < 0 || !grants[mine].any() {
				continue
			}
			a.holds = true
			oldest := e.resolved[oldestHolder(grants).service.key].choices[f]
			if oldest.local && oldest.addr == backend {
				a.lends = append(a.lends, public)
			}
		}
		list = append(list, a)
	}
	slices.SortFunc(list, func(a, b attachment) int { return a.service.older(b.service) })
	return list
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
		Workloads:  e.workloads,
	}
	e.settleShard(after)
	if sameRecord(before, after, Host.Equal) {
		return nil
	}
	e.host = after
	return &Change[Host]{Old: before, New: after}
}

func (r *resolution) localBackends() []netip.Addr {
	if r == nil {
		return nil
	}
	var local []netip.Addr
	for _, f := range families {
		if c := r.choices[f]; c.found() && c.local {
			local = append(local, c.addr)
		}
	}
	return local
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
