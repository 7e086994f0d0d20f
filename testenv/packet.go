// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

const (
	ip4HeaderLen = 20
	ip6HeaderLen = 40
	tcpHeaderLen = 20
	udpHeaderLen = 8
	defaultTTL   = 64
)

// TCP flags, from RFC 9293.
const (
	FIN uint8 = 1 << iota
	SYN
	RST
	PSH
	ACK
)

// IPHeader makes IPv4 and IPv6 packets, by the family of its addresses.
type IPHeader struct {
	Src, Dst netip.Addr
	Proto    uint8
	TTL      uint8 // 64 when zero
	DF       bool  // IPv4 only
}

// Packet is a packet with that header; the transport must be complete.
func (h IPHeader) Packet(transport []byte) []byte {
	if h.TTL == 0 {
		h.TTL = defaultTTL
	}
	if h.Src.Is6() {
		p := make([]byte, ip6HeaderLen, ip6HeaderLen+len(transport))
		p[0] = 6 << 4
		binary.BigEndian.PutUint16(p[4:], uint16(len(transport)))
		p[6], p[7] = h.Proto, h.TTL
		copy(p[8:], h.Src.AsSlice())
		copy(p[24:], h.Dst.AsSlice())
		return append(p, transport...)
	}
	p := make([]byte, ip4HeaderLen, ip4HeaderLen+len(transport))
	p[0] = 4<<4 | ip4HeaderLen/4
	binary.BigEndian.PutUint16(p[2:], uint16(ip4HeaderLen+len(transport)))
	if h.DF {
		p[6] = 0x40
	}
	p[8], p[9] = h.TTL, h.Proto
	copy(p[12:], h.Src.AsSlice())
	copy(p[16:], h.Dst.AsSlice())
	binary.BigEndian.PutUint16(p[10:], checksum(p))
	return append(p, transport...)
}

// TCPSegment is a segment to send outside of any connection of the kernel.
type TCPSegment struct {
	Src, Dst netip.AddrPort
	Seq, Ack uint32
	Flags    uint8
	Payload  []byte
}

// Packet is the IP packet of the segment.
func (s TCPSegment) Packet() []byte {
	t := make([]byte, tcpHeaderLen, tcpHeaderLen+len(s.Payload))
	putPorts(t, s.Src, s.Dst)
	binary.BigEndian.PutUint32(t[4:], s.Seq)
	binary.BigEndian.PutUint32(t[8:], s.Ack)
	t[12], t[13] = tcpHeaderLen/4<<4, s.Flags
	binary.BigEndian.PutUint16(t[14:], 0xffff) // window
	t = append(t, s.Payload...)
	return transportPacket(s.Src.Addr(), s.Dst.Addr(), unix.IPPROTO_TCP, t, 16)
}

// UDPDatagram is a datagram to send outside of any socket of the kernel.
type UDPDatagram struct {
	Src, Dst netip.AddrPort
	Payload  []byte
}

// Packet is the IP packet of the datagram.
func (d UDPDatagram) Packet() []byte {
	t := make([]byte, udpHeaderLen, udpHeaderLen+len(d.Payload))
	putPorts(t, d.Src, d.Dst)
	binary.BigEndian.PutUint16(t[4:], uint16(udpHeaderLen+len(d.Payload)))
	t = append(t, d.Payload...)
	return transportPacket(d.Src.Addr(), d.Dst.Addr(), unix.IPPROTO_UDP, t, 6)
}

func putPorts(t []byte, src, dst netip.AddrPort) {
	binary.BigEndian.PutUint16(t, src.Port())
	binary.BigEndian.PutUint16(t[2:], dst.Port())
}

// transportPacket fills in the checksum at the offset and adds the IP header.
func transportPacket(src, dst netip.Addr, proto uint8, t []byte, sumAt int) []byte {
	sum := checksum(pseudoHeader(src, dst, proto, len(t)), t)
	binary.BigEndian.PutUint16(t[sumAt:], sum)
	return IPHeader{Src: src, Dst: dst, Proto: proto}.Packet(t)
}

// pseudoHeader serves both families: fields of zero bytes and the order do not
// change a one's complement sum (RFC 1071).
func pseudoHeader(src, dst netip.Addr, proto uint8, length int) []byte {
	p := append(src.AsSlice(), dst.AsSlice()...)
	p = binary.BigEndian.AppendUint32(p, uint32(length))
	return append(p, 0, proto)
}

// checksum is that of RFC 1071; all parts but the last have an even length.
func checksum(parts ...[]byte) uint16 {
	var sum uint32
	for _, part := range parts {
		for i := 0; i+1 < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
		if len(part)%2 == 1 {
			sum += uint32(part[len(part)-1]) << 8
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
