// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// The priorities of its chains. Fragments are put together at -400, zone by zone, so the zone has to be known before; the mark comes after
// whatever others mark at mangle (-150), and before the packet is routed and its address translated back.
const (
	priorityTenantZones   = -450 // NF_IP_PRI_RAW_BEFORE_DEFRAG
	priorityTenantReplies = -115
	priorityTenantGuard   = 115
)

const (
	tenantClosed   = "closed"
	tenantToClosed = "to_closed"
	tenantOutside  = "to_outside"
)

// newTenantLayout returns chains and rules of the table of tenants. It has no sets but anonymous ones and is written as a whole: a change
// of tenants is rare, and nothing then is half of one and half of the other.
func newTenantLayout(config nat.Tenants, h nat.Host) layout {
	l := layout{chains: []chain{
		{name: "zones", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeFilter, priority: priorityTenantZones, rules: zoneRules(config, h)},
		{name: "replies", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeFilter, priority: priorityTenantReplies, rules: replyRules(config, h)},
		// What the node itself answers is routed before it comes here, and again when it is marked.
		{name: "local_replies", hook: nftables.ChainHookOutput, kind: nftables.ChainTypeRoute, priority: priorityTenantReplies, rules: replyRules(config, h)},
		{name: "guard", hook: nftables.ChainHookPostrouting, kind: nftables.ChainTypeFilter, priority: priorityTenantGuard, rules: tenantGuardRules(config, h)},
		{name: tenantClosed, rules: closedRules(h)},
		{name: tenantToClosed, rules: toTenantRules()},
		{name: tenantOutside, rules: toOutsideRules(h)},
	}}
	for _, table := range h.TenantTables {
		// ct original zone TABLE accept
		own := newRule("back to its own tenant", loadZone(reg1), match{zoneIs(expr.CmpOpEq, table)}, accept())
		l.chains = append(l.chains, chain{name: toTenant(table), rules: append([]rule{own}, toTenantRules()...)})
	}
	l.sign()
	return l
}

// sign puts a sum of everything into each comment.
func (l *layout) sign() {
	sum := fnv.New32a()
	for _, ch := range l.chains {
		fmt.Fprintf(sum, "%s %d;", ch.name, ch.priority)
		for _, r := range ch.rules {
			b, _ := fingerprint(r.exprs, nil) // what cannot be marshalled is found when it is sent
			sum.Write(append(b, r.comment...))
			for _, e := range r.anonymous.elements {
				sum.Write(append(bytes.Clone(e.Key), e.Val...))
				if e.VerdictData != nil {
					fmt.Fprintf(sum, "%d %s;", e.VerdictData.Kind, e.VerdictData.Chain)
				}
			}
		}
	}
	l.sum = fmt.Sprintf(" (%08x)", sum.Sum32())
	for _, ch := range l.chains {
		for i := range ch.rules {
			ch.rules[i].comment += l.sum
		}
	}
}

// zoneRules put what arrives from a tenant into the tenant's zone. Only the direction in which a connection began is in it: the reply comes
// by an uplink, where nothing tells whose it is but the address and port that were given. What arrives on an interface that the flags match
// and that is not in the map is dropped, also in the moment before the agent knows of the interface.
func zoneRules(config nat.Tenants, h nat.Host) []rule {
	zones := newRule("equal addresses of two tenants are two sources",
		match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, anonymousMap(), setZone(reg1)}, accept())
	zones.anonymous = anonymous{key: nftables.TypeIFName, data: zoneType()}
	outside := newRule("leads outside, whatever matches its name",
		match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, in("", false)}, accept())
	outside.anonymous = anonymous{key: nftables.TypeIFName}
	for _, t := range h.Tenants {
		switch {
		case checkLink(t.Interface) != nil: // not in tenant_if of the other table either
		case t.Open():
			zones.anonymous.add(linkKey(t.Interface), zoneKey(t.Table))
		case t.Outside:
			outside.anonymous.add(linkKey(t.Interface), nil)
		}
	}
	// ct original zone set iifname map { "IF" : TABLE, ... } accept
	// iifname { "UPLINK", ... } accept
	rules := ifAny(zones, outside)
	for _, f := range config.Flags {
		// iifname "IF*" goto closed
		rules = append(rules, newRule("--tenant-interface "+f.String(), flagIs(f, expr.MetaKeyIIFNAME), goTo(tenantClosed)))
	}
	return rules
}

// closedRules drop what arrives where no tenant is known to be, but for what makes neighbours (R11).
func closedRules(h nat.Host) []rule {
	// icmpv6 type { nd-router-solicit, ... } ip6 hoplimit 255 fib daddr type != unicast accept
	// icmpv6 type { mld-listener-query, ... } ip6 hoplimit 1 accept
	rules := []rule{neighbours(), listeners()}
	for _, t := range h.Tenants {
		if t.Closed != "" {
			// iifname "IF" counter drop
			comment := "closed: give =TABLE, put it into a VRF, or ip rule add iif " + cleanComment(t.Interface) + " lookup TABLE"
			rules = append(rules, newRule(comment, linkIs(expr.MetaKeyIIFNAME, linkKey(t.Interface)), drop()))
		}
	}
	// counter drop
	return append(rules, newRule("matches --tenant-interface and is not known yet", drop()))
}

// neighbours lets through neighbour discovery that ends here: an address that is routed on is no neighbour of the sender.
func neighbours() rule {
	r := neighbourDiscovery()
	r.comment = "neighbour discovery, on this link only"
	r.exprs = slices.Concat(r.exprs[:len(r.exprs)-1], notRoutedOn(), accept())
	return r
}

// listenerTypes are the ICMPv6 types of MLD (RFC 2710, RFC 3810), which a router never forwards.
func listenerTypes() []byte { return []byte{130, 131, 132, 143} }

func listeners() rule {
	six := families()[1]
	r := newRule("multicast listeners, on this link only", six.guard(), six.isICMP(), match{icmpType(), in("", false)}, hopLimit(1), accept())
	r.anonymous = bytesOf(nftables.TypeICMP6Type, listenerTypes())
	return r
}

// replyRules lead replies to their tenant. The packet's mark is set as a whole: joining it with other bits takes an operation on two registers
// (Linux 6.13).
func replyRules(config nat.Tenants, h nat.Host) []rule {
	mark := newRule("the route back: ip rule by this mark", ctReply(), loadZone(reg1),
		match{anonymousMap(), &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1}}, accept())
	mark.anonymous = anonymous{key: zoneType(), data: nftables.TypeMark}
	for _, table := range h.TenantTables {
		mark.anonymous.add(zoneKey(table), native(config.Mark(table)))
	}
	// ct original zone 0 accept
	rules := []rule{newRule("not of a tenant: costs this one rule", loadZone(reg1), match{zoneIs(expr.CmpOpEq, 0)}, accept())}
	// ct direction reply meta mark set ct original zone map { TABLE : MARK, ... } accept
	rules = append(rules, ifAny(mark)...)
	for i, f := range families() {
		if address := []netip.Addr{h.Shard.IPv4, h.Shard.IPv6}[i]; address.IsValid() {
			// ct direction reply ct reply zone 0 ct reply ip daddr SHARD counter drop
			// Others who use zones put both directions into one.
			rules = append(rules, newRule("of a tenant that is gone: the main table would lead to somebody else",
				ctReply(), loadReplyZone(reg1), match{zoneIs(expr.CmpOpEq, 0)}, f.translatedTo(address), drop()))
		}
	}
	return rules
}

func tenantGuardRules(config nat.Tenants, h nat.Host) []rule {
	// ct original zone 0 accept
	rules := []rule{newRule("not of a tenant: costs this one rule", loadZone(reg1), match{zoneIs(expr.CmpOpEq, 0)}, accept())}
	// oifname vmap { "IF" : goto to_TABLE, "UPLINK" : goto to_outside, ... }
	rules = append(rules, ifAny(whereTo(h))...)
	for _, f := range config.Flags {
		// oifname "IF*" goto to_closed
		rules = append(rules, newRule("--tenant-interface "+f.String(), flagIs(f, expr.MetaKeyOIFNAME), goTo(tenantToClosed)))
	}
	return rules
}

// whereTo sends what leaves to the chain that decides about the interface.
func whereTo(h nat.Host) rule {
	r := newRule("to a tenant only what is its own, outside no answer to one",
		match{&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg1}, &expr.Lookup{SourceRegister: reg1, IsDestRegSet: true}})
	r.anonymous = anonymous{key: nftables.TypeIFName, data: nftables.TypeVerdict}
	chains := map[string]string{}
	for _, uplink := range h.Uplinks {
		chains[uplink] = tenantOutside
	}
	for _, t := range h.Tenants {
		switch {
		case t.Open():
			chains[t.Interface] = toTenant(t.Table)
		case t.Outside:
			chains[t.Interface] = tenantOutside
		}
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		r.anonymous.elements = append(r.anonymous.elements, nftables.SetElement{
			Key: linkKey(name), VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: chains[name]},
		})
	}
	return r
}

// toTenantRules decide about what leaves by an interface of a tenant that is not its own.
func toTenantRules() []rule {
	return []rule{
		// ct original zone != 0 counter drop
		newRule("of another tenant", loadZone(reg1), match{zoneIs(expr.CmpOpNeq, 0)}, drop()),
		// ct state invalid counter drop
		newRule("of nobody knows which tenant", ctState(expr.CtStateBitINVALID), drop()),
	}
}

// toOutsideRules keep answers in: the table of a tenant may well have a default route, and no other route to the tenant for the moment.
func toOutsideRules(h nat.Host) []rule {
	// ct direction reply ct reply zone 0 ct original zone { TABLE, ... } counter drop
	r := newRule("the answer to a tenant would go outside", ctReply(), loadReplyZone(reg1), match{zoneIs(expr.CmpOpEq, 0)},
		loadZone(reg1), match{in("", false)}, drop())
	r.anonymous = anonymous{key: zoneType()}
	for _, table := range h.TenantTables {
		r.anonymous.add(zoneKey(table), nil)
	}
	return ifAny(r)
}

// ifAny leaves out rules whose set would be empty, which the kernel does not take.
func ifAny(rules ...rule) []rule {
	var some []rule
	for _, r := range rules {
		if len(r.anonymous.elements) > 0 {
			some = append(some, r)
		}
	}
	return some
}

func toTenant(table uint16) string { return fmt.Sprintf("to_%d", table) }

// flagIs is `iifname "IF"`, or `iifname "IF*"`: the kernel compares what is given.
func flagIs(f nat.TenantFlag, key expr.MetaKey) match {
	if prefix, glob := f.Prefix(); glob {
		return linkIs(key, []byte(prefix))
	}
	return linkIs(key, linkKey(f.Interface))
}

func linkIs(key expr.MetaKey, name []byte) match {
	return match{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: name}}
}

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
