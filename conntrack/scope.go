// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natplane/natplane/nat"
)

type targetKind uint8

const (
	publicTarget targetKind = iota
	backendTarget
	// The others are found by no search for one address: they need a look at
	// every flow.
	rangeTarget
	shardSourcesTarget
	zoneTarget
	everythingTarget
)

// target is one thing whose flows have to be looked at.
type target struct {
	kind targetKind
	// span is one address but for a rangeTarget.
	span nat.Range
	// zone is that of a zoneTarget.
	zone uint16
}

func publicOf(a netip.Addr) target {
	return target{kind: publicTarget, span: nat.Range{From: a, To: a}}
}

func backendOf(a netip.Addr) target {
	return target{kind: backendTarget, span: nat.Range{From: a, To: a}}
}

func zoneOf(zone uint16) target { return target{kind: zoneTarget, zone: zone} }

// searches returns the queries that find all flows of the target; none means
// that every flow has to be looked at.
func (t target) searches() []Query {
	switch t.kind {
	case publicTarget:
		return []Query{{Field: OrigDst, Addr: t.span.From}, {Field: ReplyDst, Addr: t.span.From}}
	case backendTarget:
		return []Query{{Field: OrigSrc, Addr: t.span.From}}
	}
	return nil
}

// families says in which families the target can have flows.
func (t target) families() []Family {
	if t.span.From.IsValid() {
		return []Family{familyOf(t.span.From)}
	}
	return []Family{IPv4, IPv6}
}

// memory is what earlier states said about a target.
type memory struct {
	// backends are those that a public address stood for.
	backends []netip.Addr
	// unknown is true when nobody remembers, and any backend may have been it.
	unknown bool
}

func (m *memory) merge(o memory) {
	m.unknown = m.unknown || o.unknown
	for _, b := range o.backends {
		if !slices.Contains(m.backends, b) {
			m.backends = append(slices.Clip(m.backends), b)
		}
	}
}

// affected lists what flows a change can make stale. Changes that only people
// see, such as another owner of the same translation, are none.
func affected(d nat.Delta, add func(target, memory)) {
	for _, c := range d.Addresses {
		if c.Old != nil && c.New != nil && sameTranslation(c.Old, c.New) {
			continue
		}
		if c.Old != nil {
			add(publicOf(c.Old.Public), memory{backends: stoodFor(c.Old)})
		} else if c.New != nil {
			add(publicOf(c.New.Public), memory{})
		}
	}
	for _, c := range d.Backends {
		if c.Old != nil && c.New != nil && c.Old.Primary == c.New.Primary {
			continue
		}
		if b := cmp.Or(c.New, c.Old); b != nil {
			add(backendOf(b.Addr), memory{})
		}
	}
	if d.Host != nil {
		before, after := hostOf(d.Host.Old), hostOf(d.Host.New)
		affectedByCluster(before, after, add)
		affectedByShard(before, after, add)
		affectedByIdleShards(before, after, add)
		affectedByTenants(before, after, add)
	}
}

func hostOf(h *nat.Host) *nat.Host {
	if h == nil {
		return &nat.Host{}
	}
	return h
}

// affectedByCluster adds the ranges to which connections begin or cease to be
// translated.
func affectedByCluster(before, after *nat.Host, add func(target, memory)) {
	added, gone := sorted(after.Cluster), sorted(before.Cluster)
	for _, r := range difference(added, gone) {
		add(target{kind: rangeTarget, span: r}, memory{})
	}
	for _, r := range difference(gone, added) {
		add(target{kind: rangeTarget, span: r}, memory{})
	}
}

// difference returns the ranges of a that are not in b, both sorted.
func difference(a, b []nat.Range) []nat.Range {
	return slices.DeleteFunc(slices.Clone(a), func(r nat.Range) bool {
		i, ok := slices.BinarySearchFunc(b, r, func(x, y nat.Range) int { return x.From.Compare(y.From) })
		return ok && b[i].To == r.To
	})
}

func affectedByShard(before, after *nat.Host, add func(target, memory)) {
	sameSources := slices.Equal(sorted(before.ShardSources), sorted(after.ShardSources))
	for _, pair := range [][2]netip.Addr{
		{before.Shard.IPv4, after.Shard.IPv4},
		{before.Shard.IPv6, after.Shard.IPv6},
	} {
		if pair[0] == pair[1] && (sameSources || !pair[1].IsValid()) {
			continue
		}
		for _, a := range pair {
			if a.IsValid() {
				add(publicOf(a), memory{})
			}
		}
		if pair[1].IsValid() {
			// Flows of shard sources that began without it.
			add(target{kind: shardSourcesTarget}, memory{})
		}
	}
}

// affectedByIdleShards adds the addresses that began or ceased to be a shard's elsewhere.
func affectedByIdleShards(before, after *nat.Host, add func(target, memory)) {
	for _, pair := range [][2][]nat.OwnedAddress{{before.IdleShards, after.IdleShards}, {after.IdleShards, before.IdleShards}} {
		for _, s := range pair[0] {
			_, both := slices.BinarySearchFunc(pair[1], s.Addr, func(o nat.OwnedAddress, a netip.Addr) int { return o.Addr.Compare(a) })
			if !both {
				add(publicOf(s.Addr), memory{})
			}
		}
	}
}

// affectedByTenants adds the zones of tenants that are gone.
func affectedByTenants(before, after *nat.Host, add func(target, memory)) {
	for _, zone := range before.TenantTables {
		if !slices.Contains(after.TenantTables, zone) {
			add(zoneOf(zone), memory{})
		}
	}
}

func sameTranslation(a, b *nat.Address) bool {
	return a.Hosted == b.Hosted && a.Elsewhere == b.Elsewhere &&
		sameForward(a.Whole, b.Whole) && sameForward(a.Echo, b.Echo) &&
		slices.EqualFunc(a.Ports, b.Ports, samePort) && slices.Equal(a.Attached, b.Attached)
}

func sameForward(a, b nat.Forward) bool {
	return a.Backend == b.Backend && a.Sources.Equal(b.Sources)
}

func samePort(a, b nat.Port) bool {
	return a.Protocol == b.Protocol && a.Port == b.Port && a.Target == b.Target && a.Sources.Equal(b.Sources)
}

// stoodFor lists the backends that the record sends to.
func stoodFor(rec *nat.Address) []netip.Addr {
	var list []netip.Addr
	add := func(a netip.Addr) {
		if a.IsValid() && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	add(rec.Whole.Backend)
	add(rec.Echo.Backend)
	for _, p := range rec.Ports {
		add(p.Target.Addr())
	}
	return list
}

// scope is what one pass looks at. It does not change during the pass.
type scope struct {
	public       map[netip.Addr]memory
	backends     map[netip.Addr]struct{}
	ranges       []nat.Range
	zones        []uint16
	shardSources bool
	everything   bool
}

func (s *scope) add(t target, m memory) {
	switch t.kind {
	case publicTarget:
		s.public[t.span.From] = m
	case backendTarget:
		s.backends[t.span.From] = struct{}{}
	case rangeTarget:
		s.ranges = append(s.ranges, t.span)
	case zoneTarget:
		s.zones = append(s.zones, t.zone)
	case shardSourcesTarget:
		s.shardSources = true
	case everythingTarget:
		s.everything = true
	}
}

// Public implements Former.
func (s *scope) Public(a netip.Addr) bool {
	_, ok := s.public[a]
	return ok
}

// StoodFor implements Former.
func (s *scope) StoodFor(public, backend netip.Addr) bool {
	m, ok := s.public[public]
	return ok && (m.unknown || slices.Contains(m.backends, backend))
}

// Tenant implements Former.
func (s *scope) Tenant(zone uint16) bool { return slices.Contains(s.zones, zone) }

// touches reports whether the flow is one to look at. It only keeps a pass over
// all flows from judging what did not change.
func (s *scope) touches(x *Index, f Flow) bool {
	if s.everything || s.Public(f.Orig.Dst) || s.Public(f.Reply.Dst) || s.Tenant(f.Orig.Zone) {
		return true
	}
	if _, ok := s.backends[f.Orig.Src]; ok {
		return true
	}
	inRange := func(r nat.Range) bool { return r.From.Compare(f.Orig.Dst) <= 0 && f.Orig.Dst.Compare(r.To) <= 0 }
	return slices.ContainsFunc(s.ranges, inRange) || s.shardSources && x.isShardSource(f.Orig.Src)
}
