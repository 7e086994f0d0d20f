// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// fakeTable holds flows and refuses what the kernel would refuse. The hooks
// inject failures; they are called with the lock held.
type fakeTable struct {
	mu       sync.Mutex
	flows    []Flow
	noFilter bool
	// refuse returns the errno for a deletion, nil to allow it.
	refuse func(Flow) error
	// breakDump returns the error with which a dump ends half way.
	breakDump func(Query) error
	// during is called in the middle of each dump, without the lock.
	during func()

	dumps   []Query
	largest int // deletion in one call
}

func (t *fakeTable) insert(flows ...Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range flows {
		same := func(o Flow) bool { return o.Orig == f.Orig && o.Zone == f.Zone && o.Protocol == f.Protocol }
		if !f.valid() || slices.ContainsFunc(t.flows, same) {
			panic(fmt.Sprintf("cannot insert %v", f))
		}
		f.ID = uint32(len(t.flows) + 1)
		t.flows = append(t.flows, f)
	}
}

func (t *fakeTable) list() []Flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.flows)
}

func (t *fakeTable) Dump(ctx context.Context, q Query, visit func(Flow)) error {
	t.mu.Lock()
	if q.byAddress() && (t.noFilter || q.Addr.Is4In6()) {
		t.mu.Unlock()
		return ErrNoFilter
	}
	t.dumps = append(t.dumps, q)
	seen := slices.Clone(t.flows)
	var broken error
	if t.breakDump != nil {
		broken = t.breakDump(q)
	}
	during := t.during
	t.mu.Unlock()
	for i, f := range seen {
		if i == len(seen)/2 {
			if broken != nil {
				return broken
			}
			if during != nil {
				during()
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		holds := slices.ContainsFunc(q.AnyOf, func(a netip.Addr) bool {
			return f.Orig.Src == a || f.Orig.Dst == a || f.Reply.Src == a || f.Reply.Dst == a
		})
		if q.Matches(f) && (holds || len(q.AnyOf) == 0) {
			visit(f)
		}
	}
	return broken
}

func (t *fakeTable) Delete(ctx context.Context, flows []Flow) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var d deletion
	t.largest = max(t.largest, len(flows))
	for _, f := range flows {
		i := slices.IndexFunc(t.flows, func(o Flow) bool { return o == f })
		var err error
		if t.refuse != nil {
			err = t.refuse(f)
		}
		switch {
		case !f.valid():
			d.fail(unix.EINVAL)
		case err != nil:
			d.fail(err)
		case i < 0:
			d.Gone++
		default:
			t.flows = slices.Delete(t.flows, i, i+1)
			d.Deleted++
		}
	}
	return d.Result, d.err()
}
