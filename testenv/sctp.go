// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"encoding/binary"
	"hash/crc32"
	"net/netip"

	"golang.org/x/sys/unix"
)

// SCTPInit is the first packet of an SCTP association, which asks the peer to
// use the tag (RFC 9260, 3.3.2). It must not be zero.
func SCTPInit(src, dst netip.AddrPort, tag uint32) []byte {
	return sctpPacket(src, dst, 0, initChunk(1, tag))
}

// SCTPInitAck answers an INIT which asked for peerTag.
func SCTPInitAck(src, dst netip.AddrPort, peerTag, tag uint32) []byte {
	// A state cookie (parameter 7) of four bytes: the parameter is mandatory.
	chunk := append(initChunk(2, tag), 0, 7, 0, 8, 'c', 'o', 'o', 'k')
	binary.BigEndian.PutUint16(chunk[2:], uint16(len(chunk)))
	return sctpPacket(src, dst, peerTag, chunk)
}

func initChunk(typ uint8, tag uint32) []byte {
	const length = 20
	chunk := make([]byte, length)
	chunk[0], chunk[3] = typ, length
	binary.BigEndian.PutUint32(chunk[4:], tag)
	binary.BigEndian.PutUint32(chunk[8:], 0xffff) // receiver window
	binary.BigEndian.PutUint16(chunk[12:], 1)     // outbound streams
	binary.BigEndian.PutUint16(chunk[14:], 1)     // inbound streams
	binary.BigEndian.PutUint32(chunk[16:], 1)     // first TSN
	return chunk
}

func sctpPacket(src, dst netip.AddrPort, verification uint32, chunk []byte) []byte {
	t := make([]byte, 12, 12+len(chunk))
	putPorts(t, src, dst)
	binary.BigEndian.PutUint32(t[4:], verification)
	t = append(t, chunk...)
	// The only little-endian field of the protocol: RFC 9260, appendix A.
	binary.LittleEndian.PutUint32(t[8:], crc32.Checksum(t, crc32.MakeTable(crc32.Castagnoli)))
	return IPHeader{Src: src.Addr(), Dst: dst.Addr(), Proto: unix.IPPROTO_SCTP}.Packet(t)
}
