// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"

	"github.com/google/nftables"
)

// batch hands elements to the library in portions, set by set, so that they need not all exist in its form at once.
type batch struct {
	queue   func(*nftables.Set, []nftables.SetElement) error
	enc     encoder
	table   *nftables.Table
	waiting [numSets][]nftables.SetElement
	count   int
	err     error
}

// newBatch is for one kind of change, which queue adds to the transaction.
func (t *Table) newBatch(queue func(*nftables.Set, []nftables.SetElement) error) *batch {
	return &batch{queue: queue, enc: encoder{defs: t.layout.defs}, table: t.kernelTable()}
}

// add takes elements. The batch is complete after end.
func (b *batch) add(es []element) {
	const portion = 1024
	for i := range es {
		s := es[i].set
		b.waiting[s] = b.enc.append(b.waiting[s], &es[i])
		if len(b.waiting[s]) >= portion {
			b.hand(s)
		}
	}
	b.count += len(es)
}

// end queues what is left and returns the first error.
func (b *batch) end() error {
	for s := range numSets {
		if len(b.waiting[s]) > 0 {
			b.hand(s)
		}
	}
	return b.err
}

func (b *batch) hand(s setID) {
	def := &b.enc.defs[s]
	if err := b.queue(def.kernelSet(b.table), b.waiting[s]); err != nil && b.err == nil {
		b.err = fmt.Errorf("set %s: %w", def.name, err)
	}
	b.waiting[s] = b.waiting[s][:0]
}
