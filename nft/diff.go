// SPDX-License-Identifier: Apache-2.0

package nft

import "github.com/natplane/natplane/nat"

// diff returns what turns old into new: elements to delete and, after that, elements to add. An element whose value or
// comment changed is in both, because the kernel changes neither in place. When new has a key twice, the first one counts.
func diff(old, new []element) (del, add []element) {
	const kept = -1
	want := make(map[key]int, len(new))
	for i := range new {
		if _, twice := want[new[i].key]; !twice {
			want[new[i].key] = i
		}
	}
	if len(old) > 0 {
		seen := make(map[key]struct{}, len(old))
		for i := range old {
			k := old[i].key
			if _, twice := seen[k]; twice {
				continue
			}
			seen[k] = struct{}{}
			if j, ok := want[k]; ok && new[j] == old[i] {
				want[k] = kept
				continue
			}
			del = append(del, old[i])
		}
	}
	for i := range new {
		if j := want[new[i].key]; j == i {
			add = append(add, new[i])
		}
	}
	return del, add
}

// stateElements returns the elements of a state, and an error for each record that cannot be programmed.
func stateElements(s *nat.State) ([]element, []error) {
	es := make([]element, 0, 4*len(s.Addresses)+2*len(s.Backends)+64)
	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for i := range s.Addresses {
		var err error
		es, err = addressElements(es, &s.Addresses[i])
		note(err)
	}
	for i := range s.Backends {
		var err error
		es, err = backendElements(es, &s.Backends[i])
		note(err)
	}
	es, hostErrs := hostElements(es, &s.Host)
	return es, append(errs, hostErrs...)
}

// deltaElements returns the elements of the records before and after. An error is returned only for records as they are
// now: a bad record has no elements, before as after.
func deltaElements(d *nat.Delta) (old, new []element, errs []error) {
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, c := range d.Addresses {
		if c.Old != nil {
			old, _ = addressElements(old, c.Old)
		}
		if c.New != nil {
			var err error
			new, err = addressElements(new, c.New)
			note(err)
		}
	}
	for _, c := range d.Backends {
		if c.Old != nil {
			old, _ = backendElements(old, c.Old)
		}
		if c.New != nil {
			var err error
			new, err = backendElements(new, c.New)
			note(err)
		}
	}
	if d.Host != nil {
		if d.Host.Old != nil {
			old, _ = hostElements(old, d.Host.Old)
		}
		if d.Host.New != nil {
			var hostErrs []error
			new, hostErrs = hostElements(new, d.Host.New)
			errs = append(errs, hostErrs...)
		}
	}
	return old, new, errs
}
