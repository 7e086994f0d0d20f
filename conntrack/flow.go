// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/natplane/natplane/nat"
)

// Protocol numbers that the decision has to tell apart (IANA).
const (
	protoICMP    nat.Protocol = 1
	protoDCCP    nat.Protocol = 33
	protoICMPv6  nat.Protocol = 58
	protoUDPLite nat.Protocol = 136
)

// ICMP types of an echo request (RFC 792, RFC 4443).
const (
	echoRequest4 = 8
	echoRequest6 = 128
)

// Tuple is one direction of a flow, as the packets of that direction look when
// they arrive.
type Tuple struct {
	Src, Dst netip.Addr
	// SrcPort is the identifier and DstPort zero when the protocol is ICMP.
	SrcPort, DstPort   uint16
	ICMPType, ICMPCode uint8
	// Zone is set when only this direction is in a zone (`ct original zone set`).
	Zone uint16
}

// Status holds the IPS_ bits of linux/netfilter/nf_conntrack_common.h.
type Status uint32

// Status bits that say something about a flow to a reader of logs and tests.
const (
	SeenReply Status = 1 << 1
	Assured   Status = 1 << 2
	Confirmed Status = 1 << 3
	SourceNAT Status = 1 << 4
	DestNAT   Status = 1 << 5
)

// Flow is one entry of the connection-tracking table.
type Flow struct {
	// ID tells a flow from a later one with the same tuple.
	ID uint32
	// Zone holds for both directions; see also Tuple.Zone.
	Zone        uint16
	Protocol    nat.Protocol
	Orig, Reply Tuple
	Status      Status
	Mark        uint32
}

// String shows both directions, for messages.
func (f Flow) String() string {
	return fmt.Sprintf("protocol %d %v -> %v, reply %v -> %v", f.Protocol,
		netip.AddrPortFrom(f.Orig.Src, f.Orig.SrcPort), netip.AddrPortFrom(f.Orig.Dst, f.Orig.DstPort),
		netip.AddrPortFrom(f.Reply.Src, f.Reply.SrcPort), netip.AddrPortFrom(f.Reply.Dst, f.Reply.DstPort))
}

// valid reports whether the flow can be named to the kernel: four addresses of
// one family.
func (f Flow) valid() bool {
	four := f.Orig.Src.Is4()
	for _, a := range [...]netip.Addr{f.Orig.Src, f.Orig.Dst, f.Reply.Src, f.Reply.Dst} {
		if !a.IsValid() || a.Is4() != four || a.Is4In6() || a.Zone() != "" {
			return false
		}
	}
	return true
}

func (f Flow) hasPorts() bool {
	switch f.Protocol {
	case nat.TCP, nat.UDP, nat.SCTP, protoDCCP, protoUDPLite:
		return true
	}
	return false
}

// destinationTranslated reports whether the flow goes to another address or
// port than the one that was dialled. The status bits would not do: the kernel
// also sets them for a binding that changed nothing but the source port.
func (f Flow) destinationTranslated() bool {
	return f.Reply.Src != f.Orig.Dst || f.hasPorts() && f.Reply.SrcPort != f.Orig.DstPort
}

// sourceTranslated reports whether the peer sees another address. A source
// port that alone was changed is the kernel's way to avoid a clash.
func (f Flow) sourceTranslated() bool { return f.Reply.Dst != f.Orig.Src }
