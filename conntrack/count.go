// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
)

// Pair is a public address and the address inside that flows of it belong to. Without the latter it stands for all flows of the address.
type Pair struct{ Public, Inside netip.Addr }

// Count returns the number of flows of each of the pairs. A flow between two
// public addresses counts for both.
func Count(ctx context.Context, t Table, pairs []Pair) (map[Pair]int, error) {
	c := counter{table: t, total: make(map[Pair]int, len(pairs)), part: map[Pair]int{}}
	public := make(map[netip.Addr]bool, len(pairs))
	for _, p := range pairs {
		c.total[p], public[p.Public] = 0, true
	}
	if len(public)*2 <= maxSearches {
		err := c.each(ctx, public)
		if !errors.Is(err, ErrNoFilter) {
			return c.total, err
		}
		// It may be the other family that the kernel cannot select by address: what is counted so far would count twice.
		for p := range c.total {
			c.total[p] = 0
		}
	}
	addresses := slices.Collect(maps.Keys(public))
	for _, family := range families(public) {
		err := c.search(ctx, Query{Family: family, AnyOf: few(addresses)}, func(f Flow) {
			if public[f.Orig.Dst] {
				c.add(f.Orig.Dst, f.Reply.Src)
			}
			if public[f.Reply.Dst] && f.Reply.Dst != f.Orig.Dst {
				c.add(f.Reply.Dst, f.Orig.Src)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return c.total, nil
}

// counter adds up what searches find.
type counter struct {
	table Table
	// total has a key for each pair that is asked for.
	total map[Pair]int
	// part is what the search under way found; one that has to begin anew counts once.
	part map[Pair]int
}

func (c *counter) search(ctx context.Context, q Query, each func(Flow)) error {
	if err := dump(ctx, c.table, q, func() { clear(c.part) }, each); err != nil {
		return err
	}
	for p, n := range c.part {
		c.total[p] += n
	}
	return nil
}

func (c *counter) add(public, inside netip.Addr) {
	for _, p := range [...]Pair{{public, inside}, {Public: public}} {
		if _, asked := c.total[p]; asked {
			c.part[p]++
		}
	}
}

// each has the kernel select the flows of one address after the other.
func (c *counter) each(ctx context.Context, public map[netip.Addr]bool) error {
	for a := range public {
		err := c.search(ctx, Query{Field: OrigDst, Addr: a}, func(f Flow) { c.add(a, f.Reply.Src) })
		if err != nil {
			return err
		}
		err = c.search(ctx, Query{Field: ReplyDst, Addr: a}, func(f Flow) {
			if f.Orig.Dst != a {
				c.add(a, f.Orig.Src)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}
