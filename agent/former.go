// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/natplane/natplane/nat"
)

// former holds public addresses whose flows may have outlived them. A transaction that failed may have been applied all the same; then
// neither the state nor the table knows the addresses that it removed, and nothing but this leads to their flows.
type former map[netip.Addr]struct{}

func (f former) add(addrs ...netip.Addr) {
	for _, a := range addrs {
		if a.IsValid() {
			f[a] = struct{}{}
		}
	}
}

// addDelta adds the addresses of a change that is not known to be programmed.
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
	}
}

// take returns the addresses, sorted, and forgets them: the audit remembers them until it has succeeded.
func (f former) take() []netip.Addr {
	addrs := slices.SortedFunc(maps.Keys(f), netip.Addr.Compare)
	clear(f)
	return addrs
}
