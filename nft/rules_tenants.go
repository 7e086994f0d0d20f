// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// The priorities of its chains. Fragments are put together at -400, zone by zone, so the zone has to be known before; the mark comes after
// whatever others mark at mangle (-150), and before the packet is routed.
const (
	priorityTenantZones   = -450 // NF_IP_PRI_RAW_BEFORE_DEFRAG
	priorityTenantReplies = -115
	priorityTenantGuard   = 115
)

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
			// oifname vmap { "IF" : goto to_TABLE, ... }
			guardRule(tenants),
		}},
	}}
	for _, table := range tenants.Tables() {
		l.chains = append(l.chains, chain{name: toTenant(table), rules: []rule{
			// ct original zone TABLE accept
			newRule("back to its own tenant", loadZone(reg1), match{zoneIs(expr.CmpOpEq, table)}, accept()),
			// ct original zone != 0 counter drop
			newRule("of another tenant", loadZone(reg1), match{zoneIs(expr.CmpOpNeq, 0)}, drop()),
			// ct state invalid counter drop
			newRule("of nobody knows which tenant", ctState(expr.CtStateBitINVALID), drop()),
		}})
	}
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
				if e.VerdictData != nil {
					sum.Write([]byte(e.VerdictData.Chain))
				}
			}
		}
	}
	for _, ch := range l.chains {
		for i := range ch.rules {
			ch.rules[i].comment += fmt.Sprintf(" (%08x)", sum.Sum32())
		}
	}
}

// zoneRule puts what arrives from a tenant into the tenant's zone. Only the direction in which a connection began is in it: the reply comes by
// an uplink, where nothing tells whose it is but the address and port that were given.
func zoneRule(tenants nat.Tenants) rule {
	r := newRule("equal addresses of two tenants are two sources",
		match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, anonymousMap(), setZone(reg1)})
	r.anonymous = anonymous{key: nftables.TypeIFName, data: zoneType()}
	for _, t := range tenants.List {
		r.anonymous.add(linkKey(t.Interface), zoneKey(t.Table))
	}
	return r
}

// markRule leads replies to their tenant. The packet's mark is set as a whole: joining it with other bits takes an operation on two registers
// (Linux 6.13).
func markRule(tenants nat.Tenants) rule {
	r := newRule("the route back: ip rule by this mark", ctReply(), loadZone(reg1),
		match{anonymousMap(), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1}}, accept())
	r.anonymous = anonymous{key: zoneType(), data: nftables.TypeMark}
	for _, table := range tenants.Tables() {
		r.anonymous.add(zoneKey(table), native(tenants.Mark(table)))
	}
	return r
}

func guardRule(tenants nat.Tenants) rule {
	r := newRule("to a tenant: only what is its own",
		match{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, &expr.Lookup{SourceRegister: reg1, IsDestRegSet: true}})
	r.anonymous = anonymous{key: nftables.TypeIFName, data: nftables.TypeVerdict}
	for _, t := range tenants.List {
		r.anonymous.elements = append(r.anonymous.elements, nftables.SetElement{
			Key: linkKey(t.Interface), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: toTenant(t.Table)},
		})
	}
	return r
}

func toTenant(table uint16) string { return fmt.Sprintf("to_%d", table) }

func linkKey(name string) []byte {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, name)
	return key
}

func zoneKey(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }

// zoneIs compares a zone in register 1.
func zoneIs(op expr.CmpOp, n uint16) expr.Any {
	return &expr.Cmp{Op: op, Register: reg1, Data: zoneKey(n)}
}

// zoneType is the type of `ct zone`, a number of the kernel. It has no name that a named set could have.
func zoneType() nftables.SetDatatype {
	t := nftables.SetDatatype{Name: "zone", Bytes: 2}
	t.SetNFTMagic(nftables.TypeInteger.GetNFTMagic())
	return t
}
