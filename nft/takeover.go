// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/natplane/natplane/nat"
)

// The table of cozy-proxy, and its maps between machines and addresses.
const (
	predecessorTable   = "cozy_proxy"
	predecessorEgress  = "pod_svc"
	predecessorIngress = "svc_pod"
)

// holdTable drops the packets of the addresses that change hands, for the milliseconds until their flows are purged. The kernel
// removes it with our connection (owner flag without persist, Linux 5.12), so that a crash cannot leave it behind.
const holdTable = "natplane_takeover"

// holdPriority is before everything of cozy-proxy, whose first chain is at raw (-300).
const holdPriority nftables.ChainPriority = -310

// Predecessor is the table that cozy-proxy left on the node.
type Predecessor struct {
	// Addresses are the public addresses that it translates, Backends the machines, both sorted.
	Addresses, Backends []netip.Addr
	// Unreadable says which of its maps could not be read, if any: it may not be what its name says.
	Unreadable error
}

func cozyProxy() *nftables.Table {
	return &nftables.Table{Name: predecessorTable, Family: nftables.TableFamilyIPv4}
}

// Predecessor returns the table of cozy-proxy, nil when there is none.
func (t *Table) Predecessor() (*Predecessor, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return nil, t.fail(err)
	}
	return readPredecessor(c)
}

func readPredecessor(c *conn) (*Predecessor, error) {
	err := c.do(func() error {
		_, err := c.ListTableOfFamily(predecessorTable, nftables.TableFamilyIPv4)
		return err
	})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("table ip %s: %w", predecessorTable, err)
	}
	p := &Predecessor{}
	for _, name := range []string{predecessorEgress, predecessorIngress} {
		pairs, err := readPairs(c, name)
		if err != nil {
			p.Unreadable = errors.Join(p.Unreadable, fmt.Errorf("table ip %s, map %s: %w", predecessorTable, name, err))
		}
		for _, pair := range pairs {
			backend, public := pair[0], pair[1]
			if name == predecessorIngress {
				backend, public = public, backend
			}
			p.Addresses, p.Backends = append(p.Addresses, public), append(p.Backends, backend)
		}
	}
	p.Addresses, p.Backends = sortedSet(p.Addresses), sortedSet(p.Backends)
	return p, nil
}

func sortedSet(addrs []netip.Addr) []netip.Addr {
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// readPairs returns key and value of each element of a map from IPv4 addresses to IPv4 addresses; none if there is no such map.
func readPairs(c *conn, name string) ([][2]netip.Addr, error) {
	var raw []nftables.SetElement
	err := c.do(func() error {
		set, err := c.GetSetByName(cozyProxy(), name)
		if err != nil {
			return err
		}
		raw, err = c.GetSetElements(set)
		return err
	})
	if isMissing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var pairs [][2]netip.Addr
	for _, e := range raw {
		key, keyOK := netip.AddrFromSlice(e.Key)
		value, valueOK := netip.AddrFromSlice(e.Val)
		if keyOK && valueOK {
			pairs = append(pairs, [2]netip.Addr{key, value})
		}
	}
	return pairs, nil
}

// TakeOver is Sync for a node that cozy-proxy serves: the transaction that completes our table also removes theirs, and holds the
// packets of its addresses back until Release. In between the caller purges the flows of those addresses and backends, which
// know nothing of a translation: a packet that met such a flow would be translated to another port, and its connection lost.
func (t *Table) TakeOver(state nat.State, p *Predecessor) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.rider = func(c *conn) error {
		c.DelTable(cozyProxy())
		if t.flags == 0 {
			return nil // without an owner flag a crash would leave the hold behind
		}
		return queueHold(c, p)
	}
	defer func() { t.rider = nil }()
	result, err := t.sync(&state)
	if err != nil {
		return result, t.fail(err)
	}
	t.unsure = false
	return result, nil
}

// queueHold makes the table that drops packets of the addresses and backends, before anybody looks at them.
func queueHold(c *conn, p *Predecessor) error {
	table := c.AddTable(&nftables.Table{Name: holdTable, Family: nftables.TableFamilyIPv4, Flags: nftables.TableFlagOwner})
	held := &nftables.Set{
		Table: table, Name: "held", KeyType: nftables.TypeIPAddr,
		Comment: "addresses that move from cozy-proxy to natplane: their flows are being purged",
	}
	var elements []nftables.SetElement
	for _, a := range sortedSet(slices.Concat(p.Addresses, p.Backends)) {
		elements = append(elements, nftables.SetElement{Key: a.AsSlice()})
	}
	if err := c.AddSet(held, elements); err != nil {
		return fmt.Errorf("table ip %s: %w", holdTable, err)
	}
	for name, hook := range map[string]*nftables.ChainHook{"forwarded": nftables.ChainHookPrerouting, "local": nftables.ChainHookOutput} {
		priority := holdPriority
		chain := c.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: &priority,
		})
		for _, offset := range []uint32{12, 16} { // source and destination in the IPv4 header (RFC 791, 3.1)
			c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4},
				&expr.Lookup{SourceRegister: 1, SetName: held.Name, SetID: held.ID},
				&expr.Verdict{Kind: expr.VerdictDrop},
			}})
		}
	}
	return nil
}

// Release lets the packets that TakeOver held back go.
func (t *Table) Release() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.flags == 0 {
		return nil
	}
	c, err := t.connect()
	if err != nil {
		return t.fail(err)
	}
	c.DelTable(&nftables.Table{Name: holdTable, Family: nftables.TableFamilyIPv4})
	if err := t.commit(c); err != nil && !isMissing(err) {
		return t.fail(err)
	}
	return nil
}

// ride adds to a transaction what has to happen together with it.
func (t *Table) ride(c *conn) error {
	if t.rider == nil {
		return nil
	}
	return t.rider(c)
}

// Owned reports whether the kernel keeps others from changing the table, and tells between two agents.
func (t *Table) Owned() bool { return t.flags != 0 }
