// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
)

// backend makes the record of a local backend from its Services; nil when none of them holds an address.
//
// The primary (R8) is the lowest address of the oldest designated Service, else of the oldest that is not excluded. A machine whose endpoint
// here ranks lower than its copy on another node has a record and no primary: nothing is translated for it, and it is kept in (R13). Its peers
// would reset the connections of a machine that migrates if they heard of them from another address.
func (w *workload) backend() *Backend {
	slices.SortFunc(w.attached, (*entry).older)
	var owner, lender *entry
	var primary netip.Addr
	for _, n := range w.attached {
		public, holds := n.lends(w)
		if !holds {
			continue
		}
		if owner == nil {
			owner = n
		}
		if !public.IsValid() || n.service.primary == excluded {
			continue
		}
		if lender == nil || n.service.primary == designated && lender.service.primary != designated {
			lender, primary = n, public
		}
	}
	if owner == nil {
		return nil
	}
	rec := &Backend{Addr: w.addr, Owner: owner.key}
	if lender != nil {
		rec.Primary, rec.PrimaryOwner = primary, lender.key
	}
	return rec
}

// lends returns the lowest address that the Service may lend its backend for egress, and whether it holds something of any address of the
// backend's family. An address that several Services hold is for the backend of the oldest, on the nodes where that ranks best.
func (n *entry) lends(w *workload) (public netip.Addr, holds bool) {
	f := familyOf(w.addr)
	for _, c := range n.resolution.permitted {
		if familyOf(c.addr) != f {
			continue
		}
		if g := c.grantTo(n); g == nil || !g.any() {
			continue
		}
		holds = true
		if oldest := &oldestHolder(c.grants).entry.resolution.choices[f]; oldest.local && oldest.workload == w {
			return c.addr, true // they are sorted
		}
	}
	return netip.Addr{}, holds
}
