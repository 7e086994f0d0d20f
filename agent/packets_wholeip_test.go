// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

func TestSampleMachinesAreReached(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	srv := overTCP().serveOn(t, p.topo.Web.NS, 8080)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		conn := overTCP().connect(t, p.topo.Ext.NS, anywhere(), srv.At(public(f, 10)))
		require.Equal(t, p.topo.Ext.Addr(f), conn.SeenByPeer.Addr())
	})
}

// wholePlane gives the machine web one whole address in each family.
func wholePlane(t testing.TB) *plane {
	p := tenantPlane(t)
	p.serve(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	return p
}

func TestWholeAddressPassesTCPAndUDP(t *testing.T) {
	t.Parallel()
	p := wholePlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	for _, tr := range []transport{overTCP(), overUDP()} {
		inside, outside := tr.serveOn(t, web.NS, 0), tr.serveOn(t, ext.NS, 0)
		t.Run(tr.name, func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				in := tr.connect(t, ext.NS, testenv.LocalPort(40001), inside.At(public(f, 10)))
				require.Equal(t, netip.AddrPortFrom(ext.Addr(f), 40001), in.SeenByPeer, "the client is kept")
				require.Equal(t, inside.At(web.Addr(f)), in.PeerLocal)

				out := tr.connect(t, web.NS, testenv.LocalPort(40002), outside.At(ext.Addr(f)))
				require.Equal(t, netip.AddrPortFrom(public(f, 10), 40002), out.SeenByPeer, "the port is kept")
				require.Equal(t, netip.AddrPortFrom(web.Addr(f), 40002), out.Local)
			})
		})
	}
}

func TestWholeAddressPassesEcho(t *testing.T) {
	t.Parallel()
	p := wholePlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		in := testenv.Echo{Dst: public(f, 10), ID: 101, Seq: 1, Payload: []byte("echo inwards " + f.String())}
		_, err := in.Ping(ext.NS, patience)
		require.NoError(t, err)
		request := arrival(t, atWeb, "request", marked(string(in.Payload)))
		require.Equal(t, []netip.Addr{ext.Addr(f), web.Addr(f)}, []netip.Addr{request.Src, request.Dst})

		out := testenv.Echo{Dst: ext.Addr(f), ID: 102, Seq: 1, Payload: []byte("echo outwards " + f.String())}
		_, err = out.Ping(web.NS, patience)
		require.NoError(t, err)
		request = arrival(t, atExt, "request", marked(string(out.Payload)))
		require.Equal(t, public(f, 10), request.Src)
		require.EqualValues(t, 102, request.ICMPID)
	})
}

// TestWholeAddressPassesProtocolsWithoutPorts sends each protocol in and back, then out to another client and back.
func TestWholeAddressPassesProtocolsWithoutPorts(t *testing.T) {
	t.Parallel()
	p := wholePlane(t)
	for _, tc := range []struct {
		name   string
		proto  uint8
		header string // what a protocol needs to be well-formed
	}{
		{"GRE", unix.IPPROTO_GRE, "\x00\x00\x08\x00"},                 // RFC 2784: no options, payload IPv4
		{"ESP", unix.IPPROTO_ESP, "\x00\x00\x10\x01\x00\x00\x00\x01"}, // RFC 4303: SPI, sequence
		{"experimental", 253, ""},                                     // RFC 3692
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, ns := range []*testenv.NetNS{p.topo.Web.NS, p.topo.Ext.NS, p.topo.Ext2.NS} {
				testenv.Absorb(t, ns, tc.proto)
			}
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				packet := func(src, dst netip.Addr, mark string) []byte {
					return testenv.IPHeader{Src: src, Dst: dst, Proto: tc.proto}.Packet([]byte(tc.header + mark))
				}
				p.passesBothWays(t, f, packet)
			})
		})
	}
}

func TestWholeAddressPassesSCTP(t *testing.T) {
	t.Parallel()
	p := wholePlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	for _, ns := range []*testenv.NetNS{web.NS, ext.NS} {
		testenv.Absorb(t, ns, unix.IPPROTO_SCTP)
	}
	atWeb, atExt := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		client, dialled, server := netip.AddrPortFrom(ext.Addr(f), 5000), netip.AddrPortFrom(public(f, 10), 6000), netip.AddrPortFrom(web.Addr(f), 6000)
		send(t, ext.NS, testenv.SCTPInit(client, dialled, 7))
		arrival(t, atWeb, "INIT inwards", sctp(client, server))
		send(t, web.NS, testenv.SCTPInitAck(server, client, 7, 8))
		arrival(t, atExt, "INIT-ACK", sctp(dialled, client))

		own, seen, far := netip.AddrPortFrom(web.Addr(f), 5001), netip.AddrPortFrom(public(f, 10), 5001), netip.AddrPortFrom(ext.Addr(f), 6001)
		send(t, web.NS, testenv.SCTPInit(own, far, 9))
		arrival(t, atExt, "INIT outwards", sctp(seen, far))
		send(t, ext.NS, testenv.SCTPInitAck(far, seen, 9, 10))
		arrival(t, atWeb, "INIT-ACK", sctp(far, own))
	})
}

// sctp matches what came in from one endpoint to another.
func sctp(src, dst netip.AddrPort) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Proto == unix.IPPROTO_SCTP &&
			netip.AddrPortFrom(p.Src, p.SrcPort) == src && netip.AddrPortFrom(p.Dst, p.DstPort) == dst
	}
}

// passesBothWays sends packets inwards from one client and outwards to the other, each with an answer.
func (p *plane) passesBothWays(t *testing.T, f testenv.Family, packet func(src, dst netip.Addr, mark string) []byte) {
	web, ext, ext2 := p.topo.Web, p.topo.Ext, p.topo.Ext2
	atWeb, atExt, atExt2 := testenv.CaptureT(t, web.NS, web.If), testenv.CaptureT(t, ext.NS, clientIf), testenv.CaptureT(t, ext2.NS, clientIf)
	for _, step := range []struct {
		from             *testenv.NetNS
		src, dst         netip.Addr
		at               *testenv.Capture
		seenSrc, seenDst netip.Addr
		mark             string
	}{
		{ext.NS, ext.Addr(f), public(f, 10), atWeb, ext.Addr(f), web.Addr(f), "inwards"},
		{web.NS, web.Addr(f), ext.Addr(f), atExt, public(f, 10), ext.Addr(f), "back outside"},
		{web.NS, web.Addr(f), ext2.Addr(f), atExt2, public(f, 10), ext2.Addr(f), "outwards"},
		{ext2.NS, ext2.Addr(f), public(f, 10), atWeb, ext2.Addr(f), web.Addr(f), "back inside"},
	} {
		send(t, step.from, packet(step.src, step.dst, step.mark))
		got := arrival(t, step.at, step.mark, marked(step.mark))
		require.Equal(t, []netip.Addr{step.seenSrc, step.seenDst}, []netip.Addr{got.Src, got.Dst}, step.mark)
	}
}

func TestWholeAddressPassesFragments(t *testing.T) {
	t.Parallel()
	const size = 4000 // three fragments at an MTU of 1500
	p := wholePlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	inside, outside := overUDP().serveOn(t, web.NS, 0), overUDP().serveOn(t, ext.NS, 0)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		in := overUDP().connect(t, ext.NS, anywhere(), inside.At(public(f, 10)))
		require.NoError(t, uplink.Reset())
		require.NoError(t, in.RoundTripSize(size))
		require.Equal(t, in.Local, in.SeenByPeer)
		requireFragments(t, uplink, ext.Addr(f), public(f, 10))

		out := overUDP().connect(t, web.NS, anywhere(), outside.At(ext.Addr(f)))
		require.NoError(t, uplink.Reset())
		require.NoError(t, out.RoundTripSize(size))
		require.Equal(t, public(f, 10), out.SeenByPeer.Addr())
		requireFragments(t, uplink, ext.Addr(f), public(f, 10))
	})
}

// requireFragments makes sure that three fragments went each way, or the test would show nothing. What came in is counted without a look at
// the addresses: the kernel writes the header of a fragment that it forwards in place, where the capture has not read it yet.
func requireFragments(t *testing.T, uplink *testenv.Capture, client, public netip.Addr) {
	t.Helper()
	require.NoError(t, uplink.Flush())
	require.Equal(t, 3, uplink.Count(func(p testenv.Packet) bool { return p.Fragment && p.Dir == testenv.In }), "fragments inwards")
	require.Equal(t, 3, uplink.Count(func(p testenv.Packet) bool {
		return p.Fragment && p.Dir == testenv.Out && p.Src == public && p.Dst == client
	}), "fragments outwards")
}
