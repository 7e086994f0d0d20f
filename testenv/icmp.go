// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const icmpHeaderLen = 8

// Largest packets that an ICMP error may be: RFC 1812 4.3.2.3, RFC 4443 2.4(c).
const (
	maxICMP4 = 576
	maxICMP6 = 1280
)

// ICMPError is an error about a packet that was sent by To.
type ICMPError struct {
	From, To   netip.Addr
	Type, Code uint8
	// Info is the second word of the message: the MTU for those about it.
	Info uint32
	// Quoted is the packet that the error is about.
	Quoted []byte
	// Short quotes only 8 bytes after the IP header, as old routers do.
	Short bool
}

// PacketTooBig is what a router says that cannot forward the packet through a
// link of that MTU ("fragmentation needed" in IPv4).
func PacketTooBig(from netip.Addr, mtu int, quoted []byte) (ICMPError, error) {
	p, err := ParsePacket(quoted)
	if err != nil {
		return ICMPError{}, err
	}
	e := ICMPError{From: from, To: p.Src, Type: 3, Code: 4, Info: uint32(mtu), Quoted: quoted}
	if p.Src.Is6() {
		e.Type, e.Code = 2, 0
	}
	return e, nil
}

// Packet is the IP packet of the error.
func (e ICMPError) Packet() []byte {
	headers, limit := ip4HeaderLen+icmpHeaderLen, maxICMP4
	quotedHeader := ip4HeaderLen
	if e.From.Is6() {
		headers, limit, quotedHeader = ip6HeaderLen+icmpHeaderLen, maxICMP6, ip6HeaderLen
	}
	quote := e.Quoted[:min(len(e.Quoted), limit-headers)]
	if e.Short {
		quote = quote[:min(len(quote), quotedHeader+8)]
	}
	return icmpPacket(e.From, e.To, e.Type, e.Code, e.Info, quote)
}

// Echo is an ICMP echo request.
type Echo struct {
	Src, Dst netip.Addr
	ID, Seq  uint16
	Payload  []byte
}

// Packet is the IP packet of the request.
func (e Echo) Packet() []byte {
	request, _ := echoTypes(FamilyOf(e.Dst))
	return icmpPacket(e.Src, e.Dst, request, 0, uint32(e.ID)<<16|uint32(e.Seq), e.Payload)
}

func echoTypes(f Family) (request, reply uint8) {
	if f == IPv6 {
		return 128, 129
	}
	return 8, 0
}

func icmpPacket(src, dst netip.Addr, typ, code uint8, info uint32, body []byte) []byte {
	t := make([]byte, icmpHeaderLen, icmpHeaderLen+len(body))
	t[0], t[1] = typ, code
	binary.BigEndian.PutUint32(t[4:], info)
	t = append(t, body...)
	if src.Is6() {
		return transportPacket(src, dst, unix.IPPROTO_ICMPV6, t, 2)
	}
	binary.BigEndian.PutUint16(t[2:], checksum(t)) // no pseudo header in ICMPv4
	return IPHeader{Src: src, Dst: dst, Proto: unix.IPPROTO_ICMP}.Packet(t)
}
