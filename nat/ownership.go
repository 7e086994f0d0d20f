// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"net/netip"
	"slices"
)

// grant is what a Service obtained of a public address that it claims (R7).
type grant struct {
	entry *entry
	whole bool
	echo  bool
	ports []servicePort
	// lost are the wanted ports that older Services hold.
	lost []lostPort
	// lostTo, when set, holds the address as a whole, or a part of it while it was wanted as a whole.
	lostTo *Key
	// lostToKind tells a Service from an EgressShard.
	lostToKind string
}

type lostPort struct {
	servicePort
	owner *Key
}

// any reports whether the Service holds something of the address.
func (g *grant) any() bool { return g.whole || len(g.ports) > 0 }

// divide gives a public address to those that may have it, the oldest first: a whole address to one, or ports to several. It looks at
// Services and shards only, because every node has to come to the same answer and Pods are known to their own node alone. A shard, if one
// wants the address, claims it as a whole.
func (c *claim) divide(rival *shard) {
	slices.SortFunc(c.wanted, (*entry).older)
	c.grants = make([]grant, 0, len(c.wanted))
	var whole, first *Key
	kind := KindService
	var taken portOwners
	echoTaken := false
	for _, n := range c.wanted {
		if !n.may(c) {
			continue
		}
		s := n.service
		if rival != nil && first == nil && rival.olderThan(s) {
			whole, first, kind = &rival.key, &rival.key, KindEgressShard
		}
		g := grant{entry: n, lostToKind: kind}
		switch {
		case whole != nil:
			g.lostTo = whole
		case s.whole && first != nil:
			g.lostTo = first
		case s.whole:
			g.whole = true
			whole = &n.key
		case len(c.wanted) == 1:
			g.ports = s.ports
		default:
			g.ports, g.lost = taken.take(n)
		}
		if s.echo && len(g.ports) > 0 && !echoTaken {
			g.echo, echoTaken = true, true
		}
		if first == nil && g.any() {
			first = &n.key
		}
		c.grants = append(c.grants, g)
	}
}

// portOwners are the ports of an address that are given away.
type portOwners map[servicePort]*Key

// take gives a Service those of its ports that no other one has.
func (o *portOwners) take(n *entry) (granted []servicePort, lost []lostPort) {
	if *o == nil {
		*o = portOwners{}
	}
	for _, p := range n.service.ports {
		id := servicePort{protocol: p.protocol, port: p.port}
		if owner := (*o)[id]; owner != nil {
			lost = append(lost, lostPort{p, owner})
			continue
		}
		(*o)[id] = &n.key
		granted = append(granted, p)
	}
	return granted, lost
}

// oldestHolder returns the grant of the oldest Service that holds something; its backend alone may use the address for egress (R8).
func oldestHolder(grants []grant) *grant {
	for i := range grants {
		if grants[i].any() {
			return &grants[i]
		}
	}
	return nil
}

// newAddress makes the record of a public address from its grants and the backends of their Services.
func newAddress(public netip.Addr, grants []grant) *Address {
	if len(grants) == 0 {
		return nil
	}
	rec := &Address{Public: public, Owner: grants[0].entry.key}
	if oldest := oldestHolder(grants); oldest != nil {
		rec.Owner = oldest.entry.key
	}
	for i := range grants {
		if grants[i].any() {
			rec.serve(&grants[i])
		}
	}
	rec.Elsewhere = !rec.Hosted && (rec.Whole.Active() || rec.Echo.Active() || len(rec.Ports) > 0)
	rec.Ports = sortPorts(rec.Ports)
	rec.Attached = sortAddrs(rec.Attached)
	return rec
}

// translates reports whether this node translates for the Service. A node whose own endpoint of the address ranks lower does not, even
// under externalTrafficPolicy Cluster: its route to the address may lead to the machine's retired copy (R4).
func (s *service) translates(c *choice) bool {
	return c.found() && (c.local || s.spread && !c.outranked && !c.unvouched)
}

// serve adds what one Service forwards on this node.
func (rec *Address) serve(g *grant) {
	s, c := g.entry.service, &g.entry.resolution.choices[familyOf(rec.Public)]
	if !s.translates(c) {
		return
	}
	if c.local {
		rec.Hosted = true
		rec.Attached = append(rec.Attached, c.addr)
	}
	sources := s.sources[familyOf(rec.Public)]
	if g.whole {
		rec.Whole = Forward{Backend: c.addr, Owner: s.key, Sources: sources}
		return
	}
	if !c.servesPorts() {
		return
	}
	rec.Ports = slices.Grow(rec.Ports, len(g.ports))
	for _, p := range g.ports {
		if target, ok := c.target(p); ok {
			rec.Ports = append(rec.Ports, Port{
				Protocol: p.protocol, Port: p.port, Target: netip.AddrPortFrom(c.addr, target), Owner: s.key, Sources: sources,
			})
		}
	}
	if g.echo {
		rec.Echo = Forward{Backend: c.addr, Owner: s.key, Sources: sources}
	}
}

func sortPorts(ports []Port) []Port {
	slices.SortFunc(ports, func(a, b Port) int { return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port)) })
	return ports
}
