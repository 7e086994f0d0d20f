// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"net/netip"
	"slices"
)

// Purge deletes every flow of the public addresses and of the backends,
// whatever made it, in all zones. It returns the number of deleted flows. A
// caller that got an error may call it again.
func Purge(ctx context.Context, t Table, addresses, backends []netip.Addr) (int, error) {
	public, private := setOf(addresses), setOf(backends)
	var total Result
	var errs firstError
	var doomed []Flow
	reap := func() {
		result, err := t.Delete(ctx, doomed)
		total.add(result)
		if err != nil {
			errs.add(err)
		}
		doomed = doomed[:0]
	}
	for _, family := range families(public, private) {
		q := Query{Family: family, AnyOf: few(addresses, backends)}
		err := dump(ctx, t, q, func() {}, func(f Flow) {
			if !public[f.Orig.Dst] && !public[f.Reply.Dst] && !private[f.Orig.Src] && !private[f.Reply.Src] {
				return
			}
			if doomed = append(doomed, f); len(doomed) >= reapAt {
				reap()
			}
		})
		if len(doomed) > 0 {
			reap()
		}
		if err != nil {
			errs.add(err)
		}
	}
	return total.Deleted, errs.err()
}

// few joins the lists for Query.AnyOf, unless they are too long to be a gain.
func few(lists ...[]netip.Addr) []netip.Addr {
	all := slices.DeleteFunc(slices.Concat(lists...), func(a netip.Addr) bool { return !a.IsValid() })
	if len(all) > maxSearches {
		return nil
	}
	return all
}

// setOf leaves out what is no address: it could only match by accident.
func setOf(list []netip.Addr) map[netip.Addr]bool {
	set := make(map[netip.Addr]bool, len(list))
	for _, a := range list {
		if a.IsValid() {
			set[a] = true
		}
	}
	return set
}

func families(sets ...map[netip.Addr]bool) []Family {
	var four, six bool
	for _, set := range sets {
		for a := range set {
			four = four || a.Is4()
			six = six || !a.Is4()
		}
	}
	var list []Family
	if four {
		list = append(list, IPv4)
	}
	if six {
		list = append(list, IPv6)
	}
	return list
}
