// SPDX-License-Identifier: Apache-2.0

package nft

// contents is what a set was found to hold.
type contents struct {
	elements []element
	// strange is true when there is something else in it that this package would not have written.
	strange bool
}

// snapshot keeps what was read before the table was ours, so that a start reads no set twice: the kernel's time to list a set
// grows with the square of its size. The zero value knows nothing.
type snapshot struct {
	// generation counts the transactions of the namespace, of anybody, up to the reading.
	generation uint32
	sets       [numSets]*contents
}

// of returns what is known of a set, or nil.
func (s *snapshot) of(id setID) *contents { return s.sets[id] }

// takeSnapshot returns what was read since the last Sync, once, as far as it still holds: when nobody has changed the ruleset
// since then but this Table with the given number of transactions.
func (t *Table) takeSnapshot(c *conn, ours uint32) (*snapshot, error) {
	known := t.snapshot
	t.snapshot = nil
	if known == nil {
		return &snapshot{}, nil
	}
	now, err := readGeneration(c)
	if err != nil || now != known.generation+ours {
		return &snapshot{}, err
	}
	return known, nil
}

func readGeneration(c *conn) (uint32, error) {
	var id uint32
	err := c.do(func() error {
		gen, err := c.GetGen()
		if err == nil {
			id = gen.ID
		}
		return err
	})
	return id, err
}
