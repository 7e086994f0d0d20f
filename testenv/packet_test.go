// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestRawPacketsArrive sends each kind of packet through a node whose
// connection tracking checks checksums and drops what is invalid.
func TestRawPacketsArrive(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	topo.NodeA.NS.NftScript(t, `table inet strict {
		chain f { type filter hook forward priority 0; policy accept;
			meta l4proto { tcp, udp, icmp, ipv6-icmp, sctp } ct state invalid counter drop
		}
	}`)
	seen := CaptureT(t, topo.Web.NS, topo.Web.If)
	Absorb(t, topo.Web.NS, unix.IPPROTO_SCTP)
	for _, f := range Families() {
		ext, web := topo.Ext.Addr(f), topo.Web.Addr(f)
		from, to := netip.AddrPortFrom(ext, 1000), netip.AddrPortFrom(web, 2000)
		for name, packet := range map[string][]byte{
			"GRE":  IPHeader{Src: ext, Dst: web, Proto: unix.IPPROTO_GRE}.Packet(make([]byte, 20)),
			"ESP":  IPHeader{Src: ext, Dst: web, Proto: unix.IPPROTO_ESP}.Packet(make([]byte, 20)),
			"253":  IPHeader{Src: ext, Dst: web, Proto: 253}.Packet([]byte("hello")),
			"SYN":  TCPSegment{Src: from, Dst: to, Seq: 1, Flags: SYN}.Packet(),
			"UDP":  UDPDatagram{Src: from, Dst: to, Payload: []byte("odd")}.Packet(),
			"SCTP": SCTPInit(from, to, 77),
			"echo": Echo{Src: ext, Dst: web, ID: 9, Payload: []byte("odd")}.Packet(),
		} {
			want, err := ParsePacket(packet)
			require.NoError(t, err)
			require.NoError(t, SendIP(topo.Ext.NS, packet))
			_, ok := seen.WaitFor(testTimeout, func(p Packet) bool {
				return p.Dir == In && p.Src == ext && p.Dst == web && p.Proto == want.Proto &&
					p.SrcPort == want.SrcPort && p.DstPort == want.DstPort && p.ICMPID == want.ICMPID &&
					p.TCPFlags == want.TCPFlags && string(p.Transport) == string(want.Transport)
			})
			require.True(t, ok, "%s %s", f, name)
		}
		if f == IPv4 {
			answer := func(p Packet) bool { return p.Dir == Out && p.ICMPType == 3 && p.ICMPCode == 2 }
			require.NoError(t, seen.Flush())
			for _, p := range seen.Packets() {
				quoted, _ := p.Quoted()
				require.False(t, answer(p) && quoted.Proto == unix.IPPROTO_SCTP, "SCTP was to be absorbed")
			}
		}
	}
}

func TestSCTPAssociationIsTracked(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	topo.NodeA.NS.NftScript(t, `table inet strict {
		chain f { type filter hook forward priority 0; policy accept;
			meta l4proto sctp ct state invalid counter drop
		}
	}`)
	Absorb(t, topo.Web.NS, unix.IPPROTO_SCTP)
	Absorb(t, topo.Ext.NS, unix.IPPROTO_SCTP)
	seen := CaptureT(t, topo.Ext.NS, machineIf)
	for _, f := range Families() {
		from, to := netip.AddrPortFrom(topo.Ext.Addr(f), 1000), netip.AddrPortFrom(topo.Web.Addr(f), 2000)
		sctpFrom := func(src netip.AddrPort) func(Packet) bool {
			return func(p Packet) bool { return p.Dir == In && p.Src == src.Addr() && p.Proto == unix.IPPROTO_SCTP }
		}
		require.NoError(t, SendIP(topo.Web.NS, SCTPInitAck(to, from, 77, 88)))
		seen.Never(t, "an answer that nobody asked for", sctpFrom(to))
		require.NoError(t, SendIP(topo.Ext.NS, SCTPInit(from, to, 77)))
		require.NoError(t, seen.Flush())
		require.NoError(t, SendIP(topo.Web.NS, SCTPInitAck(to, from, 77, 88)))
		_, ok := seen.WaitFor(testTimeout, sctpFrom(to))
		require.True(t, ok, f)
	}
}

func TestICMPErrorsAreRelated(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	topo.NodeA.NS.NftScript(t, `table inet strict {
		chain f { type filter hook forward priority 0; policy accept;
			icmp type destination-unreachable ct state != related drop
			icmpv6 type packet-too-big ct state != related drop
		}
	}`)
	seen := CaptureT(t, topo.Web.NS, topo.Web.If)
	for _, f := range Families() {
		web, ext := netip.AddrPortFrom(topo.Web.Addr(f), 2000), netip.AddrPortFrom(topo.Ext.Addr(f), 1000)
		isError := func(p Packet) bool {
			quoted, ok := p.Quoted()
			return ok && p.Dir == In && quoted.Src == web.Addr() && quoted.SrcPort == 2000 && quoted.DstPort == 1000
		}
		ListenUDP(t, topo.Ext.NS, ext)
		sent := UDPDatagram{Src: web, Dst: ext, Payload: make([]byte, 1000)}.Packet()
		e, err := PacketTooBig(topo.Router.Addr(f), 1300, sent)
		require.NoError(t, err)
		require.NoError(t, SendIP(topo.Router.NS, e.Packet()))
		seen.Never(t, "an error about nothing", isError)
		require.NoError(t, SendIP(topo.Web.NS, sent))
		require.NoError(t, seen.Flush())
		for _, short := range []bool{true, false} {
			require.NoError(t, seen.Reset())
			e.Short = short
			require.NoError(t, SendIP(topo.Router.NS, e.Packet()))
			p, ok := seen.WaitFor(testTimeout, isError)
			require.True(t, ok, "%s short %v", f, short)
			quoted, _ := p.Quoted()
			require.Equal(t, short, len(quoted.Transport) == 8)
		}
	}
}

func TestParsePacketRefusesRubbish(t *testing.T) {
	t.Parallel()
	for _, raw := range [][]byte{nil, {0x45}, {0x60, 0}, {0x15}, append([]byte{0x4f}, make([]byte, 25)...)} {
		_, err := ParsePacket(raw)
		require.Error(t, err)
	}
}

func FuzzParsePacket(f *testing.F) {
	a, b := netip.MustParseAddrPort("[2001:db8::1]:1"), netip.MustParseAddrPort("[2001:db8::2]:2")
	f.Add(SCTPInit(a, b, 1))
	f.Add(TCPSegment{Src: a, Dst: b}.Packet())
	f.Fuzz(func(_ *testing.T, raw []byte) {
		p, err := ParsePacket(raw)
		if err == nil {
			p.Quoted()
			_ = p.String()
		}
	})
}
