// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// Direction says whether a packet came in by an interface or left by it.
type Direction string

// The directions, as the namespace of the interface sees them.
const (
	In  Direction = "in"
	Out Direction = "out"
)

// Packet is one IPv4 or IPv6 packet. Fields that its protocol does not have are
// zero, as are those of the transport in all fragments but the first.
type Packet struct {
	Time             time.Time
	Dir              Direction
	Src, Dst         netip.Addr
	Proto            uint8
	TTL              uint8
	SrcPort, DstPort uint16 // TCP, UDP and SCTP
	TCPFlags         uint8
	ICMPType         uint8
	ICMPCode         uint8
	ICMPID           uint16 // echo only
	Fragment         bool   // any part of a fragmented datagram
	// Raw is the whole packet, Transport what follows the IP headers. The
	// checksums of a captured packet may not be computed yet.
	Raw, Transport []byte
}

// String is one line for the message of a failed test.
func (p Packet) String() string {
	text := fmt.Sprintf("%s %s -> %s proto %d ttl %d len %d", p.Dir,
		netip.AddrPortFrom(p.Src, p.SrcPort), netip.AddrPortFrom(p.Dst, p.DstPort), p.Proto, p.TTL, len(p.Raw))
	switch p.Proto {
	case unix.IPPROTO_TCP:
		text += fmt.Sprintf(" flags %#02x", p.TCPFlags)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		text += fmt.Sprintf(" type %d code %d id %d", p.ICMPType, p.ICMPCode, p.ICMPID)
	}
	return text
}

// ParsePacket reads the headers of an IP packet, which may be cut short after
// them, as packets quoted by ICMP errors are.
func ParsePacket(raw []byte) (Packet, error) {
	p := Packet{Raw: raw}
	if len(raw) == 0 {
		return p, fmt.Errorf("empty packet")
	}
	var (
		first bool
		err   error
	)
	switch raw[0] >> 4 {
	case 4:
		first, err = p.parse4(raw)
	case 6:
		first, err = p.parse6(raw)
	default:
		err = fmt.Errorf("IP version %d", raw[0]>>4)
	}
	if err == nil && first {
		p.parseTransport()
	}
	return p, err
}

func (p *Packet) parse4(raw []byte) (first bool, err error) {
	if len(raw) < ip4HeaderLen || int(raw[0]&0xf)*4 > len(raw) {
		return false, fmt.Errorf("IPv4 packet of %d bytes", len(raw))
	}
	p.TTL, p.Proto = raw[8], raw[9]
	p.Src = netip.AddrFrom4([4]byte(raw[12:16]))
	p.Dst = netip.AddrFrom4([4]byte(raw[16:20]))
	p.Transport = raw[int(raw[0]&0xf)*4:]
	fragment := binary.BigEndian.Uint16(raw[6:])
	p.Fragment = fragment&0x3fff != 0
	return fragment&0x1fff == 0, nil
}

func (p *Packet) parse6(raw []byte) (first bool, err error) {
	if len(raw) < ip6HeaderLen {
		return false, fmt.Errorf("IPv6 packet of %d bytes", len(raw))
	}
	p.Proto, p.TTL = raw[6], raw[7]
	p.Src = netip.AddrFrom16([16]byte(raw[8:24]))
	p.Dst = netip.AddrFrom16([16]byte(raw[24:40]))
	p.Transport, first = raw[ip6HeaderLen:], true
	for isExtension(p.Proto) && len(p.Transport) >= 8 {
		size := 8
		if p.Proto == unix.IPPROTO_FRAGMENT {
			p.Fragment = true
			first = binary.BigEndian.Uint16(p.Transport[2:])&^7 == 0
		} else {
			size += int(p.Transport[1]) * 8
		}
		if size > len(p.Transport) {
			break
		}
		p.Proto, p.Transport = p.Transport[0], p.Transport[size:]
		if !first {
			break
		}
	}
	return first, nil
}

func isExtension(proto uint8) bool {
	switch proto {
	case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_DSTOPTS:
		return true
	}
	return false
}

func (p *Packet) parseTransport() {
	t := p.Transport
	if len(t) < 8 {
		return
	}
	switch p.Proto {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP:
		p.SrcPort, p.DstPort = binary.BigEndian.Uint16(t), binary.BigEndian.Uint16(t[2:])
		if p.Proto == unix.IPPROTO_TCP && len(t) >= tcpHeaderLen {
			p.TCPFlags = t[13]
		}
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		p.ICMPType, p.ICMPCode = t[0], t[1]
		if p.isEcho() {
			p.ICMPID = binary.BigEndian.Uint16(t[4:])
		}
	}
}

func (p *Packet) isEcho() bool {
	request, reply := echoTypes(FamilyOf(p.Src))
	return p.ICMPType == request || p.ICMPType == reply
}

// Quoted is the packet that an ICMP error is about; false for other packets.
func (p Packet) Quoted() (Packet, bool) {
	isError := p.Proto == unix.IPPROTO_ICMP && (p.ICMPType == 3 || p.ICMPType == 5 || p.ICMPType == 11 || p.ICMPType == 12) ||
		p.Proto == unix.IPPROTO_ICMPV6 && p.ICMPType < 128
	if !isError || len(p.Transport) < 8 {
		return Packet{}, false
	}
	quoted, err := ParsePacket(p.Transport[8:])
	return quoted, err == nil
}
