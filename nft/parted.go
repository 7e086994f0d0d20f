// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"time"
)

// An agent that dies between a transaction which takes an address away and the audit of its flows leaves flows to which nothing leads: neither
// the objects nor the maps know the address any more. So the same transaction writes down which backend the address stood for, until the audit is
// done. Where no agent sees to that, the kernel forgets it after a while.

// partedTimeout is twice the longest time that the kubelet waits before it restarts a container (five minutes).
const partedTimeout = 10 * time.Minute

// partings returns what to write down about a change: each address that this node no longer translates, with its backends. A shard's address has
// no backend; it stands with the unspecified address.
func partings(del, add []element) []element {
	gone := map[netip.Addr]struct{}{}
	for i := range del {
		if e := &del[i]; e.translated() {
			gone[e.addr] = struct{}{}
		}
	}
	for i := range add {
		if e := &add[i]; e.translated() {
			delete(gone, e.addr)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	var list []element
	seen := map[key]struct{}{}
	for i := range del {
		if !del[i].pairs() {
			continue
		}
		public, backend := del[i].pair()
		parting := element{key: key{set: parted4.of(public), addr: public, from: backend, to: backend}, comment: del[i].comment}
		if _, is := gone[public]; !is {
			continue
		}
		if _, twice := seen[parting.key]; !twice {
			seen[parting.key] = struct{}{}
			list = append(list, parting)
		}
	}
	return list
}

// remember adds to a transaction what it parts.
func (t *Table) remember(b *batch, partings []element) {
	b.add(partings)
	t.parted = t.parted || len(partings) > 0
}

// Forget removes what is remembered of former addresses, once their flows are gone. It does nothing where there is nothing.
func (t *Table) Forget() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.parted || t.unsure {
		return nil // a Sync is due, which remembers by itself
	}
	c, err := t.connect()
	if err != nil {
		return t.fail(err)
	}
	for _, s := range []setID{parted4, parted6} {
		c.FlushSet(t.layout.defs[s].kernelSet(t.kernelTable()))
	}
	if err := t.commit(c); err != nil {
		return t.fail(err)
	}
	t.parted = false
	return nil
}

// translated is true for the element that says of an address that this node translates it.
func (e *element) translated() bool {
	return e.set >= hosted4 && e.set <= hosted6 || e.set >= elsewhere4 && e.set <= elsewhere6
}

// pairs is true for an element that joins a public address and a backend, or a shard's address and its sources.
func (e *element) pairs() bool { return e.set >= port4 && e.set <= shard6 }

// partedElements are what was written down before, to be kept in a new table.
func partedElements(parted map[netip.Addr][]netip.Addr) []element {
	var list []element
	for public, backends := range parted {
		for _, backend := range backends {
			list = append(list, element{key: key{set: parted4.of(public), addr: public, from: backend, to: backend}})
		}
	}
	return list
}

// readParted returns what earlier agents wrote down, and this one: former public addresses and the backends that they stood for. It is empty where
// the sets are not there.
func (t *Table) readParted(c *conn) (map[netip.Addr][]netip.Addr, error) {
	var parted map[netip.Addr][]netip.Addr
	for _, s := range []setID{parted4, parted6} {
		es, err := t.readMap(c, s, &snapshot{})
		if err != nil {
			return nil, err
		}
		if parted == nil && len(es) > 0 {
			parted = map[netip.Addr][]netip.Addr{}
		}
		for i := range es {
			parted[es[i].addr] = append(parted[es[i].addr], es[i].from)
		}
	}
	return parted, nil
}
