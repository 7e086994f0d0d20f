// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// tenantTable exists only while there are tenants. It is apart from the other table because the library cannot write its one kind of
// expression (see zonePlaceholder), and so that nothing of it costs a node without tenants anything.
const tenantTable = "natplane_tenants"

// The priorities of its chains. Fragments are put together at -400, zone by zone, so the zone has to be known before; the mark comes after
// whatever others mark at mangle (-150), and before the packet is routed.
const (
	priorityTenantZones   = -450 // NF_IP_PRI_RAW_BEFORE_DEFRAG
	priorityTenantReplies = -115
	priorityTenantGuard   = 115
)

// Tenants keeps the table of tenants. It is not safe for concurrent use.
type Tenants struct {
	netns   int
	log     *slog.Logger
	tenants nat.Tenants
	flags   nftables.TableFlags
	sock    *netlink.Conn
}

// OpenTenants returns the keeper of the table of tenants; owned is whether the kernel can protect a table. Nothing is written yet.
func OpenTenants(netns int, tenants nat.Tenants, owned bool, log *slog.Logger) *Tenants {
	t := &Tenants{netns: netns, log: log, tenants: tenants}
	if owned {
		t.flags = nftables.TableFlagOwner | nftables.TableFlagPersist
	}
	return t
}

// Close gives the ownership back; the table stays.
func (t *Tenants) Close() error {
	if t.sock == nil {
		return nil
	}
	sock := t.sock
	t.sock = nil
	return sock.Close()
}

// Sync makes the table what the tenants ask for, in one transaction, and reports whether it was something else.
func (t *Tenants) Sync() (changed bool, err error) {
	if t.tenants.None() {
		return t.remove()
	}
	if t.sock == nil {
		if t.sock, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.netns}); err != nil {
			return false, fmt.Errorf("nftables socket: %w", err)
		}
	}
	// Takes a table that a process which is gone left behind. With other flags it cannot be taken, and is made anew below.
	err = t.send(func(c *nftables.Conn) error { c.AddTable(t.table()); return nil })
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return false, t.fail(err)
	}
	layout := newTenantLayout(t.tenants)
	same, err := t.holds(layout)
	if err != nil || same {
		return false, err
	}
	err = t.send(func(c *nftables.Conn) error {
		c.DelTable(t.table())
		c.AddTable(t.table())
		return layout.queue(c, t.table())
	})
	if err != nil {
		return false, t.fail(err)
	}
	return true, nil
}

// fail drops the connection, so that nothing of this exchange meets the next one.
func (t *Tenants) fail(err error) error {
	err = errors.Join(err, t.Close())
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("nftables table inet %s: %w: %w", tenantTable, ErrOwned, err)
	}
	return fmt.Errorf("nftables table inet %s: %w", tenantTable, err)
}

func (t *Tenants) table() *nftables.Table {
	return &nftables.Table{Name: tenantTable, Family: nftables.TableFamilyINet, Flags: t.flags}
}

// remove deletes the table; that there is none is no error.
func (t *Tenants) remove() (bool, error) {
	c, err := dial(t.netns)
	if err != nil {
		return false, err
	}
	c.DelTable(t.table())
	err = c.do(c.Flush)
	closed := c.close()
	if isMissing(err) {
		return false, closed
	}
	if err = errors.Join(err, closed); err != nil {
		return false, fmt.Errorf("nftables table inet %s: %w", tenantTable, err)
	}
	return true, nil
}

// holds reports whether the kernel has the table as it was written: every rule carries a sum of the layout in its comment, and nobody else
// may change an owned table. One that is not owned is written anew each time.
func (t *Tenants) holds(l layout) (bool, error) {
	if t.flags == 0 {
		return false, nil
	}
	c, err := dial(t.netns)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.close() }() // it was only read
	for _, ch := range l.chains {
		rules, err := readRules(c, ch.kernelChain(t.table()))
		if isMissing(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		if len(rules) != len(ch.rules) {
			return false, nil
		}
		for i, r := range rules {
			if commentOf(r) != ch.rules[i].comment {
				return false, nil
			}
		}
	}
	return true, nil
}

// RemoveTenants removes the table of tenants and reports whether there was one.
func RemoveTenants(netns int) (bool, error) {
	return (&Tenants{netns: netns}).remove()
}

// newTenantLayout returns chains and rules of the table of tenants, which has no sets but anonymous ones: tenants do not change while an
// agent lives.
func newTenantLayout(tenants nat.Tenants) layout {
	l := layout{chains: []chain{
		{name: "zones", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeFilter, priority: priorityTenantZones, rules: []rule{
			// ct original zone set iifname map { "IF" : TABLE, ... }
			zoneRule(tenants),
		}},
		{name: "replies", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeFilter, priority: priorityTenantReplies, rules: []rule{
			// ct original zone 0 accept
			newRule("not of a tenant: costs this one rule", loadZone(reg1), match{zoneIs(expr.CmpOpEq, 0)}, accept()),
			// ct direction reply meta mark set ct original zone map { TABLE : MARK, ... }
			markRule(tenants),
		}},
		{name: "guard", hook: nftables.ChainHookPostrouting, kind: nftables.ChainTypeFilter, priority: priorityTenantGuard, rules: []rule{
			// ct original zone 0 accept
			newRule("not of a tenant: costs this one rule", loadZone(reg1), match{zoneIs(expr.CmpOpEq, 0)}, accept()),
			// ct original zone . oifname { TABLE . "IF", ... } accept
			guardRule(tenants),
			// ct original zone != 0 oifname { "IF", ... } counter drop
			foreignRule(tenants, "of another tenant", loadZone(reg1), match{zoneIs(expr.CmpOpNeq, 0)}),
			// ct state invalid oifname { "IF", ... } counter drop
			foreignRule(tenants, "of nobody knows which tenant", ctState(expr.CtStateBitINVALID)),
		}},
	}}
	l.sign()
	return l
}

// sign puts a sum of everything into each comment.
func (l layout) sign() {
	sum := fnv.New32a()
	for _, ch := range l.chains {
		fmt.Fprintf(sum, "%s %d;", ch.name, ch.priority)
		for _, r := range ch.rules {
			b, _ := fingerprint(r.exprs, nil) // what cannot be marshalled is found when it is sent
			sum.Write(append(b, r.comment...))
			for _, e := range r.anonymous.elements {
				sum.Write(append(bytes.Clone(e.Key), e.Val...))
			}
		}
	}
	for _, ch := range l.chains {
		for i := range ch.rules {
			ch.rules[i].comment += fmt.Sprintf(" (%08x)", sum.Sum32())
		}
	}
}

// zoneType is the type of `ct zone`: a number of the kernel, 16 bits wide. It has no name that a named set could have.
func zoneType() nftables.SetDatatype {
	return nftables.SetDatatype{Name: "zone", Bytes: 2}.withMagic(nftables.TypeInteger.GetNFTMagic())
}
