// SPDX-License-Identifier: Apache-2.0

package nat

import "net/netip"

// attachment is a Service whose backend a workload is, with the addresses that it may lend for egress, sorted.
type attachment struct {
	service *service
	// holds is true when the Service holds something of an address of the backend's family.
	holds bool
	lends []netip.Addr
}

// newBackend makes the record of a local backend from its Services, the oldest first; nil when none of them holds an address.
//
// The primary (R8) is the lowest address of the oldest designated Service, else of the oldest that is not excluded.
func newBackend(addr netip.Addr, attached []attachment) *Backend {
	rec := &Backend{Addr: addr}
	found := false
	var lender *attachment
	for i := range attached {
		a := &attached[i]
		if !a.holds {
			continue
		}
		if !found {
			rec.Owner, found = a.service.key, true
		}
		if len(a.lends) == 0 || a.service.primary == excluded {
			continue
		}
		if lender == nil || a.service.primary == designated && lender.service.primary != designated {
			lender = a
		}
	}
	if !found {
		return nil
	}
	if lender != nil {
		rec.Primary, rec.PrimaryOwner = lender.lends[0], lender.service.key
	}
	return rec
}
