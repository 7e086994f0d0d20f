// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"

	"github.com/natplane/natplane/nat"
)

// diff returns what turns one list of elements into another: elements to delete and, after that, elements to add. An element
// whose value or comment changed is in both, because the kernel changes neither in place. Of two that are wanted under one
// key, the first one counts.
func diff(have, want []element) (del, add []element) {
	const seen = -1
	index := make(map[key]int, len(want))
	settled := make([]bool, len(want)) // not to be added: there already, or another of the same key is
	for i := range want {
		if _, twice := index[want[i].key]; twice {
			settled[i] = true
			continue
		}
		index[want[i].key] = i
	}
	for i := range have {
		k := have[i].key
		j, wanted := index[k]
		switch {
		case wanted && j == seen:
			continue
		case wanted && want[j] == have[i]:
			settled[j] = true
		default:
			del = append(del, have[i])
		}
		index[k] = seen
	}
	for i := range want {
		if !settled[i] {
			add = append(add, want[i])
		}
	}
	return del, add
}

// walk gives the elements of a state record by record, in a slice that is used again, and returns an error for each record
// that cannot be programmed.
func walk(s *nat.State, yield func([]element)) []error {
	c := collector{es: make([]element, 0, 64)}
	var before netip.Addr
	for i := range s.Addresses {
		a := &s.Addresses[i]
		if i > 0 && a.Public == before {
			c.invalid = append(c.invalid, fmt.Errorf("public address %v of %s: given twice", a.Public, a.Owner))
			continue
		}
		before = a.Public
		c.es = c.es[:0]
		c.address(a)
		yield(c.es)
	}
	before = netip.Addr{}
	for i := range s.Backends {
		b := &s.Backends[i]
		if i > 0 && b.Addr == before {
			c.invalid = append(c.invalid, fmt.Errorf("backend %v of %s: given twice", b.Addr, b.Owner))
			continue
		}
		before = b.Addr
		c.es = c.es[:0]
		c.backend(b)
		yield(c.es)
	}
	c.es = c.es[:0]
	c.host(&s.Host)
	yield(c.es)
	return c.invalid
}

// stateElements returns all elements of a state.
func stateElements(s *nat.State) ([]element, []error) {
	es := make([]element, 0, 4*len(s.Addresses)+2*len(s.Backends)+64)
	invalid := walk(s, func(some []element) { es = append(es, some...) })
	return es, invalid
}

// deltaElements returns the elements of the records before and after. Errors are only about records as they are now: a bad
// record has no elements, before as after.
func deltaElements(d *nat.Delta) (have, want []element, invalid []error) {
	var before, after collector
	for _, c := range d.Addresses {
		before.address(c.Old)
		after.address(c.New)
	}
	for _, c := range d.Backends {
		before.backend(c.Old)
		after.backend(c.New)
	}
	if d.Host != nil {
		before.host(d.Host.Old)
		after.host(d.Host.New)
	}
	return before.es, after.es, after.invalid
}

// collector gathers the elements of records, nil ones having none.
type collector struct {
	es      []element
	invalid []error
}

func (c *collector) address(a *nat.Address) {
	if a == nil {
		return
	}
	var err error
	if c.es, err = addressElements(c.es, a); err != nil {
		c.invalid = append(c.invalid, err)
	}
}

func (c *collector) backend(b *nat.Backend) {
	if b == nil {
		return
	}
	var err error
	if c.es, err = backendElements(c.es, b); err != nil {
		c.invalid = append(c.invalid, err)
	}
}

func (c *collector) host(h *nat.Host) {
	if h == nil {
		return
	}
	var errs []error
	c.es, errs = hostElements(c.es, h)
	c.invalid = append(c.invalid, errs...)
}
