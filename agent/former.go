// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
)

// former holds public addresses whose flows may have outlived them, and zones of tenants. A transaction that failed may have been applied
// all the same; then neither the state nor the table knows what it removed, and nothing but this leads to the flows.
type former struct {
	addresses map[netip.Addr]struct{}
	zones     map[uint16]struct{}
}

func newFormer() former {
	return former{map[netip.Addr]struct{}{}, map[uint16]struct{}{}}
}

func (f former) add(addrs ...netip.Addr) {
	for _, a := range addrs {
		if a.IsValid() {
			f.addresses[a] = struct{}{}
		}
	}
}

// addDelta adds the addresses and zones of a change that is not known to be programmed.
func (f former) addDelta(d nat.Delta) {
	for _, c := range d.Addresses {
		if c.Old != nil {
			f.add(c.Old.Public)
		}
	}
	if d.Host != nil && d.Host.Old != nil {
		f.add(d.Host.Old.Shard.IPv4, d.Host.Old.Shard.IPv6)
		for _, s := range d.Host.Old.IdleShards {
			f.add(s.Addr)
		}
		for _, zone := range d.Host.Old.TenantTables {
			f.zones[zone] = struct{}{} // those of tenants that are still there do no harm
		}
	}
}

// take returns what to look at, all flows and these, and forgets them: the audit remembers them until it has succeeded.
func (f former) take() conntrack.Look {
	look := conntrack.Look{
		Everything: true,
		Addresses:  slices.SortedFunc(maps.Keys(f.addresses), netip.Addr.Compare),
		Zones:      slices.Sorted(maps.Keys(f.zones)),
	}
	clear(f.addresses)
	clear(f.zones)
	return look
}
