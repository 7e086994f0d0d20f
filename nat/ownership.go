// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"net/netip"
	"slices"
)

// grant is what a Service obtained of a public address that it claims (R7).
type grant struct {
	service *service
	whole   bool
	echo    bool
	ports   []servicePort
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
func (g grant) any() bool { return g.whole || len(g.ports) > 0 }

// divide gives a public address to its claimants, the oldest first: a whole address to one, or ports to several. It looks at Services
// and shards only, because every node has to come to the same answer and Pods are known to their own node alone. A shard, if one wants
// the address, claims it as a whole.
func divide(claimants []*service, rival *shard) []grant {
	grants := make([]grant, 0, len(claimants))
	var whole, first *Key
	kind := KindService
	taken := map[servicePort]*Key{}
	echoTaken := false
	for _, s := range claimants {
		if rival != nil && first == nil && rival.olderThan(s) {
			whole, first, kind = &rival.key, &rival.key, KindEgressShard
		}
		g := grant{service: s, lostToKind: kind}
		switch {
		case whole != nil:
			g.lostTo = whole
		case s.whole && first != nil:
			g.lostTo = first
		case s.whole:
			g.whole = true
			whole = &s.key
		default:
			for _, p := range s.ports {
				id := servicePort{protocol: p.protocol, port: p.port}
				if owner := taken[id]; owner != nil {
					g.lost = append(g.lost, lostPort{p, owner})
					continue
				}
				taken[id] = &s.key
				g.ports = append(g.ports, p)
			}
			if s.echo && len(g.ports) > 0 && !echoTaken {
				g.echo, echoTaken = true, true
			}
		}
		if first == nil && g.any() {
			first = &s.key
		}
		grants = append(grants, g)
	}
	return grants
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
func newAddress(public netip.Addr, grants []grant, backend func(*service) choice) *Address {
	if len(grants) == 0 {
		return nil
	}
	rec := &Address{Public: public, Owner: grants[0].service.key}
	if oldest := oldestHolder(grants); oldest != nil {
		rec.Owner = oldest.service.key
	}
	for _, g := range grants {
		if g.any() {
			rec.serve(g, backend(g.service))
		}
	}
	rec.Elsewhere = !rec.Hosted && (rec.Whole.Active() || rec.Echo.Active() || len(rec.Ports) > 0)
	rec.Ports = sortPorts(rec.Ports)
	rec.Attached = sortAddrs(rec.Attached)
	return rec
}

// translates reports whether this node translates for the Service. A node whose own endpoint of the address ranks lower does not, even
// under externalTrafficPolicy Cluster: its route to the address may lead to the machine's retired copy (R4).
func (s *service) translates(c choice) bool {
	return c.found() && (c.local || s.spread && !c.outranked && !c.unvouched)
}

// serve adds what one Service forwards on this node.
func (rec *Address) serve(g grant, c choice) {
	s := g.service
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
