// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
)

// Every request names our table, so the kernel answers with our objects only: nothing in a table of others, however
// strange, can reach us or make reading slow.

// readTable returns the table as the kernel has it, nil when there is none.
func readTable(c *conn) (*nftables.Table, error) {
	var have *nftables.Table
	err := c.do(func() (err error) {
		have, err = c.ListTableOfFamily(tableName, nftables.TableFamilyINet)
		return err
	})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}
	return have, nil
}

// readElements returns all elements but those that end by themselves, and the names of sets that hold something that this package does not
// write. What known has is not read again.
func (t *Table) readElements(c *conn, known *snapshot) (es []element, strange []setID, err error) {
	for s := range numSets {
		if t.layout.defs[s].timeout > 0 {
			continue
		}
		have, err := t.contentsOf(c, s, known)
		if err != nil {
			return nil, nil, err
		}
		if have.strange {
			strange = append(strange, s)
			continue
		}
		es = append(es, have.elements...)
	}
	return es, strange, nil
}

// contentsOf returns what a set of our type holds.
func (t *Table) contentsOf(c *conn, s setID, known *snapshot) (*contents, error) {
	if have := known.of(s); have != nil {
		return have, nil
	}
	raw, err := t.readSet(c, s)
	if err != nil {
		return nil, err
	}
	es, ok := t.enc.decode(s, raw)
	return &contents{elements: es, strange: !ok}, nil
}

func (t *Table) readSet(c *conn, s setID) ([]nftables.SetElement, error) {
	set := t.layout.defs[s].kernelSet(t.kernelTable())
	var raw []nftables.SetElement
	err := c.do(func() (err error) {
		raw, err = c.GetSetElements(set)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set.Name, err)
	}
	return raw, nil
}

// Backends returns, for every public address that the kernel translates now, the backends that it stands for in either
// direction, sorted. It is empty without a table, and lacks a map that is not there or not of our type. Nothing is owned or
// changed by it. A Sync that follows reads the rest only, unless somebody changed the ruleset in between.
func (t *Table) Backends() (map[netip.Addr][]netip.Addr, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return nil, t.fail(err)
	}
	generation, err := readGeneration(c)
	if err != nil {
		return nil, t.fail(err)
	}
	read := &snapshot{generation: generation}
	backends, err := t.readBackends(c, read)
	if err != nil {
		return nil, t.fail(err)
	}
	t.snapshot = read
	return backends, nil
}

func (t *Table) readBackends(c *conn, known *snapshot) (map[netip.Addr][]netip.Addr, error) {
	backends := make(map[netip.Addr][]netip.Addr)
	for s := port4; s <= egress6; s++ {
		es, err := t.readMap(c, s, known)
		if err != nil {
			return nil, err
		}
		for i := range es {
			public, backend := es[i].pair()
			if known := backends[public]; !slices.Contains(known, backend) {
				backends[public] = append(known, backend)
			}
		}
	}
	for _, known := range backends {
		slices.SortFunc(known, netip.Addr.Compare)
	}
	return backends, nil
}

// Addresses returns the public addresses that the kernel translates now in either direction, that of a shard included, sorted, and
// whether there is a table at all.
func (t *Table) Addresses() (addresses []netip.Addr, exists bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return nil, false, t.fail(err)
	}
	have, err := readTable(c)
	if err != nil {
		return nil, false, t.fail(err)
	}
	translations, err := t.readTranslations(c, &snapshot{})
	if err != nil {
		return nil, false, t.fail(err)
	}
	return publicsOf(translations), have != nil, nil
}

// readTranslations returns the elements by which a table of any layout translates, as far as they can be read.
func (t *Table) readTranslations(c *conn, known *snapshot) ([]element, error) {
	var all []element
	for s := range numSets {
		if e := (&element{key: key{set: s}}); !e.pairs() && !e.translated() {
			continue
		}
		es, err := t.readMap(c, s, known)
		if err != nil {
			return nil, err
		}
		all = append(all, es...)
	}
	return all, nil
}

// pair returns the public address and the backend of an element of a translating map; the sources of a shard are no single backend.
func (e *element) pair() (public, backend netip.Addr) {
	switch public = e.value.Addr(); {
	case e.set == shard4:
		return public, netip.IPv4Unspecified()
	case e.set == shard6:
		return public, netip.IPv6Unspecified()
	case e.set == egress4 || e.set == egress6:
		return public, e.addr
	}
	return e.addr, e.value.Addr()
}

// publicsOf returns the public addresses of elements, sorted. Of removed ones they are what the flow audit has to look for beyond the new state.
func publicsOf(es []element) []netip.Addr {
	var publics []netip.Addr
	for i := range es {
		switch e := &es[i]; {
		case e.pairs():
			public, _ := e.pair()
			publics = append(publics, public)
		case e.set == public4 || e.set == public6:
			publics = append(publics, e.addr)
		}
	}
	return sortedSet(publics)
}

// readMap returns the elements of a map, none of one that is missing or not of our type, and notes them in known.
func (t *Table) readMap(c *conn, s setID, known *snapshot) ([]element, error) {
	if have := known.of(s); have != nil {
		return have.elements, nil
	}
	reason, err := t.compareSet(c, t.kernelTable(), s)
	if reason != "" || err != nil {
		return nil, err
	}
	have, err := t.contentsOf(c, s, known)
	if err != nil {
		return nil, err
	}
	known.sets[s] = have
	return have.elements, nil
}

// Counter is what the rules of one chain with one comment counted since the table was written, both families together.
type Counter struct {
	Chain   string `json:"chain"`
	Comment string `json:"comment"`
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// Counters reads the counters of the rules that drop, sorted by chain and comment. It is empty without a table.
func (t *Table) Counters() ([]Counter, error) { return t.counters(t.kernelTable(), t.layout.chains) }

func (t *Table) counters(table *nftables.Table, chains []chain) ([]Counter, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return nil, t.fail(err)
	}
	type name struct{ chain, comment string }
	sums := make(map[name]Counter)
	for _, ch := range chains {
		rules, err := readRules(c, ch.kernelChain(table))
		if isMissing(err) {
			continue
		}
		if err != nil {
			return nil, t.fail(err)
		}
		for _, r := range rules {
			for _, e := range r.Exprs {
				if counter, ok := e.(*expr.Counter); ok {
					n := name{ch.name, commentOf(r)}
					sum := sums[n]
					sums[n] = Counter{n.chain, n.comment, sum.Packets + counter.Packets, sum.Bytes + counter.Bytes}
				}
			}
		}
	}
	counters := make([]Counter, 0, len(sums))
	for _, sum := range sums {
		counters = append(counters, sum)
	}
	slices.SortFunc(counters, func(a, b Counter) int {
		return cmp.Or(cmp.Compare(a.Chain, b.Chain), cmp.Compare(a.Comment, b.Comment))
	})
	return counters, nil
}

func readRules(c *conn, ch *nftables.Chain) ([]*nftables.Rule, error) {
	var rules []*nftables.Rule
	err := c.do(func() (err error) {
		rules, err = c.GetRules(ch.Table, ch)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read chain %s: %w", ch.Name, err)
	}
	return rules, nil
}

func commentOf(r *nftables.Rule) string {
	comment, _ := userdata.GetString(r.UserData, userdata.TypeComment)
	return comment
}
