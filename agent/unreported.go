// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"slices"

	"github.com/natplane/natplane/nat"
)

// unreported is what the reporter has not heard, because the kernel does not hold it yet. Both lists are sorted and hold an object once.
type unreported struct {
	verdicts []nat.Verdict
	gone     []nat.Key
}

// object names what a verdict is about: a shard may have the name of a Service.
type object struct {
	kind string
	key  nat.Key
}

func (u *unreported) empty() bool { return len(u.verdicts)+len(u.gone) == 0 }

// add takes what a batch changed; the later word about an object counts.
func (u *unreported) add(o nat.Outcome) {
	if u.empty() { // as always but after a failure: what a start has to say is not copied
		u.verdicts, u.gone = o.Verdicts, o.Gone
		return
	}
	verdicts, gone := map[object]nat.Verdict{}, map[nat.Key]struct{}{}
	for _, v := range slices.Concat(u.verdicts, o.Verdicts) {
		verdicts[object{v.Kind, v.Key()}] = v
	}
	for _, key := range slices.Concat(u.gone, o.Gone) {
		gone[key] = struct{}{}
	}
	for _, v := range o.Verdicts {
		if v.Kind == nat.KindService {
			delete(gone, v.Key())
		}
	}
	for _, key := range o.Gone {
		delete(verdicts, object{nat.KindService, key})
	}
	u.verdicts = slices.SortedFunc(maps.Values(verdicts), nat.CompareVerdicts)
	u.gone = slices.SortedFunc(maps.Keys(gone), nat.CompareKeys)
}

// take returns everything and forgets it.
func (u *unreported) take() ([]nat.Verdict, []nat.Key) {
	verdicts, gone := u.verdicts, u.gone
	*u = unreported{}
	return verdicts, gone
}
