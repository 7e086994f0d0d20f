// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The registers of the nf_tables virtual machine: 16 of 4 bytes (NFT_REG32_00 is number 8), the first four of which are
// also register 1 of 16 bytes. A key of several fields is put together in consecutive registers, and each field starts
// at a multiple of 4 bytes.
const (
	reg1     = unix.NFT_REG_1
	reg32_00 = unix.NFT_REG32_00
)

// regAt is the register that starts the given number of bytes, a multiple of 4, after register 1. The kernel reports a
// multiple of 16 as one of the big registers, so it is given that way.
func regAt(offset uint32) uint32 {
	if offset%16 == 0 {
		return reg1 + offset/16
	}
	return reg32_00 + offset/4
}

// match is a part of a rule: expressions that let a packet go on or end the rule.
type match []expr.Any

// family holds what differs between the rules of IPv4 and IPv6.
type family struct {
	ipv6         bool
	nfproto      byte
	addrLen      uint32
	saddr, daddr uint32 // offsets in the network header
	icmp         byte   // protocol number
	echoRequest  byte   // ICMP type
	ctDaddr      expr.CtKey
}

// families returns IPv4 and IPv6: the rules of both come from one builder.
func families() []family {
	return []family{
		{nfproto: unix.NFPROTO_IPV4, addrLen: 4, saddr: 12, daddr: 16, icmp: unix.IPPROTO_ICMP, echoRequest: 8, ctDaddr: expr.CtKeyDSTIP},
		{ipv6: true, nfproto: unix.NFPROTO_IPV6, addrLen: 16, saddr: 8, daddr: 24, icmp: unix.IPPROTO_ICMPV6, echoRequest: 128, ctDaddr: expr.CtKeyDSTIP6},
	}
}

// set returns the name of this family's member of a pair of sets.
func (f family) set(s setID) string {
	if f.ipv6 {
		s++
	}
	return setName(s)
}

func setName(s setID) string { return setDefs()[s].name }

// guard lets only packets of the family pass: a header of the other one would be read at the wrong offsets.
func (f family) guard() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, equal(f.nfproto)}
}

func (f family) load(offset, reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.addrLen}
}

// daddrIn is `ip daddr @set`.
func (f family) daddrIn(s setID) match { return f.addrIn(f.daddr, s, false) }

// daddrNotIn is `ip daddr != @set`.
func (f family) daddrNotIn(s setID) match { return f.addrIn(f.daddr, s, true) }

// saddrIn is `ip saddr @set`.
func (f family) saddrIn(s setID) match { return f.addrIn(f.saddr, s, false) }

func (f family) addrIn(offset uint32, s setID, not bool) match {
	return match{f.load(offset, reg1), in(f.set(s), not)}
}

// sourceAllowed is `ip daddr . ip saddr != @set`: it matches clients that are not in the set.
func (f family) sourceNotIn(s setID) match {
	return match{f.load(f.daddr, reg1), f.load(f.saddr, regAt(f.addrLen)), in(f.set(s), true)}
}

// loadPort loads `ip daddr . meta l4proto . th dport`. It ends the rule for a packet whose ports cannot be read.
func (f family) loadPort() match {
	return match{
		f.load(f.daddr, reg1),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regAt(f.addrLen)},
		&expr.Payload{DestRegister: regAt(f.addrLen + 4), Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
}

// portIn is `ip daddr . meta l4proto . th dport @set`.
func (f family) portIn(s setID) match { return append(f.loadPort(), in(f.set(s), false)) }

// portSourceNotIn is `ip daddr . meta l4proto . th dport . ip saddr != @set`.
func (f family) portSourceNotIn(s setID) match {
	return append(f.loadPort(), f.load(f.saddr, regAt(f.addrLen+8)), in(f.set(s), true))
}

// isICMP is `meta l4proto icmp`, the part of `icmp type` that nft leaves unsaid.
func (f family) isICMP() match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equal(f.icmp)}
}

// echo is `icmp type echo-request`.
func (f family) echo() match { return append(append(f.isICMP(), icmpType()), equal(f.echoRequest)) }

// dialledIn is `ct original ip daddr @set`. It needs no guard: without a tracked packet of the family the load ends the rule.
func (f family) dialledIn(s setID) match {
	return match{&expr.Ct{Key: f.ctDaddr, Register: reg1, Direction: expr.CtDirOriginal}, in(f.set(s), false)}
}

// translatedTo is `ct reply ip daddr a`: what the peer of the connection knows of its source.
func (f family) translatedTo(a netip.Addr) match {
	return match{
		&expr.Ct{Key: f.ctDaddr, Register: reg1, Direction: expr.CtDirReply},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: a.AsSlice()},
	}
}

// notLocalSource is `fib saddr type != local`: the packet does not come from an address of this node.
func notLocalSource() match {
	return match{
		&expr.Fib{Register: reg1, FlagSADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(unix.RTN_LOCAL)},
	}
}

// notRoutedOn is `fib daddr type != unicast`: the packet ends on this node, or goes to a group.
func notRoutedOn() match {
	return match{
		&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(unix.RTN_UNICAST)},
	}
}

// noWayBack is `fib saddr . iif oif missing`: the route to the source does not lead to the interface that the packet came by.
func noWayBack() match {
	return match{
		&expr.Fib{Register: reg1, FlagSADDR: true, FlagIIF: true, FlagPRESENT: true, ResultOIF: true},
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: native(0)},
	}
}

// mapped is the end of `... map @map`: register 1 holds the value from here on.
func (f family) mapped(s setID) expr.Any {
	return &expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: f.set(s)}
}

// toAddress translates to the address in register 1.
func (f family) toAddress(kind expr.NATType) expr.Any {
	return &expr.NAT{Type: kind, Family: uint32(f.nfproto), RegAddrMin: reg1, RegAddrMax: reg1}
}

// iifTo is `snat ip to iifname map @map`.
func (f family) iifTo(s setID) match {
	return match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, f.mapped(s), f.toAddress(expr.NATTypeSourceNAT)}
}

// toAddressPort translates to the address in register 1 and the port after it.
func (f family) toAddressPort(kind expr.NATType) expr.Any {
	p := regAt(f.addrLen)
	return &expr.NAT{Type: kind, Family: uint32(f.nfproto), RegAddrMin: reg1, RegAddrMax: reg1, RegProtoMin: p, RegProtoMax: p, Specified: true}
}

func icmpType() expr.Any {
	return &expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1}
}

// hopLimit is `ip6 hoplimit n`; the family must be known.
func hopLimit(n byte) match {
	return match{&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 7, Len: 1}, equal(n)}
}

// iifIn is `iifname @set`, iifNotIn `iifname != @set`, oifIn `oifname @set`.
func iifIn(s setID) match    { return linkIn(expr.MetaKeyIIFNAME, s, false) }
func iifNotIn(s setID) match { return linkIn(expr.MetaKeyIIFNAME, s, true) }
func oifIn(s setID) match    { return linkIn(expr.MetaKeyOIFNAME, s, false) }

func linkIn(key expr.MetaKey, s setID, not bool) match {
	return match{&expr.Meta{Key: key, Register: reg1}, in(setName(s), not)}
}

// ctState is `ct state a,b`, ctStatus `ct status a,b`: one of the bits is set.
func ctState(bits uint32) match  { return ctBits(expr.CtKeySTATE, bits) }
func ctStatus(bits uint32) match { return ctBits(expr.CtKeySTATUS, bits) }

func ctBits(key expr.CtKey, bits uint32) match {
	return match{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: native(bits), Xor: native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: native(0)},
	}
}

// ctReply is `ct direction reply`.
func ctReply() match {
	return match{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, equal(expr.CtDirReply)}
}

// anonymousMap is `... map { ... }`: register 1 holds the value from here on.
func anonymousMap() expr.Any {
	return &expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true}
}

func in(set string, not bool) expr.Any {
	return &expr.Lookup{SourceRegister: reg1, SetName: set, Invert: not}
}

func equal(b byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: []byte{b}} }

// native is a number of the kernel itself, in the byte order of this machine.
func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func jump(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}} }

// goTo is `goto chain`: nothing after it is asked.
func goTo(chain string) match { return match{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}} }

func accept() match { return match{&expr.Verdict{Kind: expr.VerdictAccept}} }

// goBack ends the chain: in a base chain with policy accept the packet goes on as it is.
func goBack() match { return match{&expr.Verdict{Kind: expr.VerdictReturn}} }

// drop counts what it drops.
func drop() match { return match{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}} }

func masquerade() match { return match{&expr.Masq{}} }
