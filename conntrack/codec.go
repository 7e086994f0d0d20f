// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h.
const (
	msgNew    netfilter.MessageType = 0
	msgGet    netfilter.MessageType = 1
	msgDelete netfilter.MessageType = 2

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaTimeout    = 7
	ctaMark       = 8
	ctaID         = 12
	ctaZone       = 18
	ctaFilter     = 25 // Linux 5.8

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum        = 1
	ctaProtoSrcPort    = 2
	ctaProtoDstPort    = 3
	ctaProtoICMPID     = 4
	ctaProtoICMPType   = 5
	ctaProtoICMPCode   = 6
	ctaProtoICMPv6ID   = 7
	ctaProtoICMPv6Type = 8
	ctaProtoICMPv6Code = 9

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2

	// Bits of the two filter flags: which parts of the tuple count
	// (net/netfilter/nf_internals.h). Zones do not count unless asked for.
	filterIPSrc = 1 << 0
	filterIPDst = 1 << 1
)

var errNotAFlow = errors.New("message is not a flow")

func decodeFlow(m netlink.Message) (Flow, error) {
	h, ad, err := netfilter.DecodeNetlink(m)
	if err != nil {
		return Flow{}, err
	}
	if h.SubsystemID != netfilter.NFSubsysCTNetlink || h.MessageType != msgNew {
		return Flow{}, fmt.Errorf("%w: %v", errNotAFlow, h)
	}
	var f Flow
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleOrig:
			ad.Nested(func(nad *netlink.AttributeDecoder) error { return decodeTuple(nad, &f.Orig, &f.Protocol) })
		case ctaTupleReply:
			ad.Nested(func(nad *netlink.AttributeDecoder) error { return decodeTuple(nad, &f.Reply, &f.Protocol) })
		case ctaStatus:
			f.Status = Status(ad.Uint32())
		case ctaMark:
			f.Mark = ad.Uint32()
		case ctaID:
			f.ID = ad.Uint32()
		case ctaZone:
			f.Zone = ad.Uint16()
		}
	}
	if err := ad.Err(); err != nil {
		return Flow{}, err
	}
	if !f.valid() {
		return Flow{}, fmt.Errorf("%w: its addresses are not four of one family", errNotAFlow)
	}
	return f, nil
}

func decodeTuple(ad *netlink.AttributeDecoder, t *Tuple, proto *nat.Protocol) error {
	for ad.Next() {
		switch ad.Type() {
		case ctaTupleIP:
			ad.Nested(func(nad *netlink.AttributeDecoder) error { return decodeAddrs(nad, t) })
		case ctaTupleProto:
			ad.Nested(func(nad *netlink.AttributeDecoder) error { return decodeProto(nad, t, proto) })
		case ctaTupleZone:
			t.Zone = ad.Uint16()
		}
	}
	return ad.Err()
}

func decodeAddrs(ad *netlink.AttributeDecoder, t *Tuple) error {
	for ad.Next() {
		addr := &t.Dst
		switch ad.Type() {
		case ctaIPv4Src, ctaIPv6Src:
			addr = &t.Src
		case ctaIPv4Dst, ctaIPv6Dst:
		default:
			continue
		}
		ad.Do(func(b []byte) error {
			a, ok := netip.AddrFromSlice(b)
			if !ok {
				return fmt.Errorf("address of %d bytes", len(b))
			}
			*addr = a
			return nil
		})
	}
	return ad.Err()
}

func decodeProto(ad *netlink.AttributeDecoder, t *Tuple, proto *nat.Protocol) error {
	for ad.Next() {
		switch ad.Type() {
		case ctaProtoNum:
			*proto = nat.Protocol(ad.Uint8())
		case ctaProtoSrcPort, ctaProtoICMPID, ctaProtoICMPv6ID:
			t.SrcPort = ad.Uint16()
		case ctaProtoDstPort:
			t.DstPort = ad.Uint16()
		case ctaProtoICMPType, ctaProtoICMPv6Type:
			t.ICMPType = ad.Uint8()
		case ctaProtoICMPCode, ctaProtoICMPv6Code:
			t.ICMPCode = ad.Uint8()
		}
	}
	return ad.Err()
}

func request(msg netfilter.MessageType, flags netlink.HeaderFlags, family Family, ae *netlink.AttributeEncoder) (netlink.Message, error) {
	pf := netfilter.ProtoUnspec
	switch family {
	case IPv4:
		pf = netfilter.ProtoIPv4
	case IPv6:
		pf = netfilter.ProtoIPv6
	}
	return netfilter.EncodeNetlink(netfilter.Header{
		SubsystemID: netfilter.NFSubsysCTNetlink,
		MessageType: msg,
		Family:      pf,
		Flags:       netlink.Request | flags,
	}, ae)
}

func dumpRequest(q Query) (netlink.Message, error) {
	ae := netfilter.NewAttributeEncoder()
	if q.byAddress() {
		tuple, flagsOf, flag := uint16(ctaTupleOrig), uint16(ctaFilterOrigFlags), uint32(filterIPSrc)
		if q.Field == ReplySrc || q.Field == ReplyDst {
			tuple, flagsOf = ctaTupleReply, ctaFilterReplyFlags
		}
		if q.Field == OrigDst || q.Field == ReplyDst {
			flag = filterIPDst
		}
		ae.Nested(ctaFilter, func(nae *netlink.AttributeEncoder) error {
			// The one number of this protocol in the byte order of the host.
			nae.ByteOrder = binary.NativeEndian
			nae.Uint32(flagsOf, flag)
			return nil
		})
		ae.Nested(tuple, func(nae *netlink.AttributeEncoder) error {
			encodeAddrs(nae, q.Addr, q.Addr)
			return nil
		})
	}
	return request(msgGet, netlink.Dump, q.family(), ae)
}

func deleteRequest(f Flow) (netlink.Message, error) {
	if !f.valid() {
		return netlink.Message{}, fmt.Errorf("delete %v: %w", f, unix.EINVAL)
	}
	ae := netfilter.NewAttributeEncoder()
	encodeIdentity(ae, f)
	ae.Uint32(ctaID, f.ID)
	return request(msgDelete, netlink.Acknowledge, familyOf(f.Orig.Src), ae)
}

func encodeIdentity(ae *netlink.AttributeEncoder, f Flow) {
	encodeTuple(ae, ctaTupleOrig, f.Protocol, f.Orig)
	if f.Zone != 0 {
		ae.Uint16(ctaZone, f.Zone)
	}
}

func encodeTuple(ae *netlink.AttributeEncoder, attr uint16, proto nat.Protocol, t Tuple) {
	ae.Nested(attr, func(nae *netlink.AttributeEncoder) error {
		encodeAddrs(nae, t.Src, t.Dst)
		nae.Nested(ctaTupleProto, func(p *netlink.AttributeEncoder) error {
			p.Uint8(ctaProtoNum, uint8(proto))
			switch proto {
			case protoICMP:
				p.Uint16(ctaProtoICMPID, t.SrcPort)
				p.Uint8(ctaProtoICMPType, t.ICMPType)
				p.Uint8(ctaProtoICMPCode, t.ICMPCode)
			case protoICMPv6:
				p.Uint16(ctaProtoICMPv6ID, t.SrcPort)
				p.Uint8(ctaProtoICMPv6Type, t.ICMPType)
				p.Uint8(ctaProtoICMPv6Code, t.ICMPCode)
			default:
				p.Uint16(ctaProtoSrcPort, t.SrcPort)
				p.Uint16(ctaProtoDstPort, t.DstPort)
			}
			return nil
		})
		if t.Zone != 0 {
			nae.Uint16(ctaTupleZone, t.Zone)
		}
		return nil
	})
}

func encodeAddrs(ae *netlink.AttributeEncoder, src, dst netip.Addr) {
	ae.Nested(ctaTupleIP, func(nae *netlink.AttributeEncoder) error {
		if src.Is4() {
			nae.Bytes(ctaIPv4Src, src.AsSlice())
			nae.Bytes(ctaIPv4Dst, dst.AsSlice())
			return nil
		}
		nae.Bytes(ctaIPv6Src, src.AsSlice())
		nae.Bytes(ctaIPv6Dst, dst.AsSlice())
		return nil
	})
}
