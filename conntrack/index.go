// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natplane/natplane/nat"
)

// Index finds the records of the committed state by address. It holds the
// records that it was given, which are immutable; it is not safe for concurrent
// use while it changes.
type Index struct {
	addresses map[netip.Addr]*nat.Address
	backends  map[netip.Addr]*nat.Backend
	// idle are the records of addresses of shards that are not translated here: of nothing.
	idle map[netip.Addr]*nat.Address
	host *nat.Host
	// What flows are compared with one by one: a cluster has an entry for
	// each node in both, so they are sorted and searched.
	cluster, masquerade, shardSources []nat.Range
}

// NewIndex indexes a whole state.
func NewIndex(s nat.State) *Index {
	x := &Index{
		addresses: make(map[netip.Addr]*nat.Address, len(s.Addresses)),
		backends:  make(map[netip.Addr]*nat.Backend, len(s.Backends)),
	}
	x.setHost(&s.Host)
	for i := range s.Addresses {
		x.addresses[s.Addresses[i].Public] = &s.Addresses[i]
	}
	for i := range s.Backends {
		x.backends[s.Backends[i].Addr] = &s.Backends[i]
	}
	return x
}

// Apply brings the index from one state to the next.
func (x *Index) Apply(d nat.Delta) {
	for _, c := range d.Addresses {
		replace(x.addresses, c, func(a *nat.Address) netip.Addr { return a.Public })
	}
	for _, c := range d.Backends {
		replace(x.backends, c, func(b *nat.Backend) netip.Addr { return b.Addr })
	}
	if d.Host != nil {
		x.setHost(cmp.Or(d.Host.New, &nat.Host{}))
	}
}

func (x *Index) setHost(h *nat.Host) {
	x.host = h
	x.idle = make(map[netip.Addr]*nat.Address, len(h.IdleShards))
	for _, s := range h.IdleShards {
		x.idle[s.Addr] = &nat.Address{Public: s.Addr, Owner: s.Owner}
	}
	x.cluster, x.masquerade, x.shardSources = sorted(h.Cluster), sorted(h.Masquerade), sorted(h.ShardSources)
}

// address returns what is done for a public address, nil for one that is none or the shard's of this node.
func (x *Index) address(a netip.Addr) *nat.Address {
	if rec := x.addresses[a]; rec != nil {
		return rec
	}
	return x.idle[a]
}

func sorted(named []nat.NamedRange) []nat.Range {
	ranges := make([]nat.Range, 0, len(named))
	for _, r := range named {
		ranges = append(ranges, r.Range)
	}
	slices.SortFunc(ranges, func(a, b nat.Range) int { return a.From.Compare(b.From) })
	return ranges
}

func replace[T any](m map[netip.Addr]*T, c nat.Change[T], key func(*T) netip.Addr) {
	if c.Old != nil {
		delete(m, key(c.Old))
	}
	if c.New != nil {
		m[key(c.New)] = c.New
	}
}

// shardAddress is invalid while the shard does not translate the family of a.
func shardAddress(h *nat.Host, a netip.Addr) netip.Addr {
	if a.Is4() {
		return h.Shard.IPv4
	}
	return h.Shard.IPv6
}

func (x *Index) isShard(a netip.Addr) bool { return shardAddress(x.host, a) == a }

func (x *Index) inCluster(a netip.Addr) bool     { return within(x.cluster, a) }
func (x *Index) isMasqueraded(a netip.Addr) bool { return within(x.masquerade, a) }
func (x *Index) isShardSource(a netip.Addr) bool { return within(x.shardSources, a) }

// knowsTenant reports whether replies to a zone find their way. 0 is no tenant's.
func (x *Index) knowsTenant(zone uint16) bool {
	return zone == 0 || slices.Contains(x.host.TenantTables, zone)
}

// isLocal reports whether a connection from the address can have begun on this
// node or inside the cluster. Flows do not tell the interface that they came
// by; an address from elsewhere came by an uplink.
func (x *Index) isLocal(a netip.Addr) bool {
	return x.backends[a] != nil || x.inCluster(a) || x.isMasqueraded(a)
}

func (x *Index) hasPrimary(a netip.Addr) bool {
	b := x.backends[a]
	return b != nil && b.Primary.IsValid()
}

func admits(s nat.Sources, a netip.Addr) bool { return !s.Restricted || within(s.Allowed, a) }

// within searches sorted ranges that do not overlap. Compare orders IPv4 before
// IPv6, so that both may be in one list.
func within(ranges []nat.Range, a netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(ranges, a, func(r nat.Range, a netip.Addr) int {
		switch {
		case r.To.Compare(a) < 0:
			return -1
		case a.Compare(r.From) < 0:
			return 1
		}
		return 0
	})
	return ok
}
