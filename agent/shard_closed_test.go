// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// leakComment is the rule that keeps private sources in.
const leakComment = "private source, untranslated"

func withRole(role nat.ShardRole) func(*agent.Options) {
	return func(o *agent.Options) { o.Policy.ShardRole = role }
}

// requireClosed shows that a machine can send nothing outside, whatever the protocol, and that the drops are counted.
func (p *plane) requireClosed(t *testing.T, f testenv.Family) {
	t.Helper()
	web, pod, ext := p.topo.Web, p.topo.Pod, p.topo.Ext
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	before := p.counterOf("node-a", leakComment)
	for _, m := range []*testenv.Machine{web, pod} {
		own, far := netip.AddrPortFrom(m.Addr(f), 4000), netip.AddrPortFrom(ext.Addr(f), 4001)
		for _, packet := range [][]byte{
			testenv.TCPSegment{Src: own, Dst: far, Flags: testenv.SYN}.Packet(),
			testenv.TCPSegment{Src: own, Dst: far, Seq: 1, Ack: 1, Flags: testenv.ACK, Payload: []byte("mid-stream")}.Packet(),
			testenv.UDPDatagram{Src: own, Dst: far, Payload: []byte("datagram")}.Packet(),
			testenv.Echo{Src: m.Addr(f), Dst: ext.Addr(f), ID: 5, Seq: 1}.Packet(),
			testenv.IPHeader{Src: m.Addr(f), Dst: ext.Addr(f), Proto: unix.IPPROTO_ESP}.Packet(make([]byte, 16)),
			testenv.SCTPInit(own, far, 1),
		} {
			send(t, m.NS, packet)
		}
	}
	// What comes last shows that the others had their time.
	require.Equal(t, p.topo.Mail.Addr(f), overTCP().leavesWith(t, p.topo.Mail.NS, overTCP().serveOn(t, pod.NS, 0).At(pod.Addr(f))))
	uplink.Never(t, "a private source", func(pk testenv.Packet) bool { return isPrivate(pk) && !pk.Dst.IsPrivate() })
	require.GreaterOrEqual(t, p.counterOf("node-a", leakComment)-before, uint64(12), "counted")
	require.NotContains(t, flowsTo(t, p.topo.NodeA, ext.Addr(f)), "src="+web.Addr(f).String(), "no flow stays behind")
}

// TestShardKeepsInWhatItCannotTranslate: private sources stay in as long as the node has the role of a shard, address or not.
func TestShardKeepsInWhatItCannotTranslate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role   nat.ShardRole
		change func(*plane)
	}{
		"no address yet":      {nat.ShardAuto, func(p *plane) { p.objects.shard(shardName, "node-a") }},
		"two shards":          {nat.ShardAuto, func(p *plane) { p.objects.shard("galactic-system/second", "node-a", dual(201)...) }},
		"deleted, role on":    {nat.ShardOn, func(p *plane) { p.objects.deleteShard(shardName) }},
		"moved away, role on": {nat.ShardOn, func(p *plane) { p.objects.shard(shardName, "node-b", dual(200)...) }},
		"address of a node, refused": {nat.ShardAuto, func(p *plane) {
			p.objects.deleteShard(shardName)
			p.objects.shard("galactic-system/second", "node-a", p.topo.NodeA.Addr4().String(), p.topo.NodeA.Addr6().String())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := shardPlane(t, withRole(c.role))
			if name == "no address yet" { // the address is write-once, so it must not have had one
				p.objects.deleteShard(shardName)
				p.settle()
			}
			c.change(p)
			p.settle()
			for _, f := range testenv.Families() {
				p.requireClosed(t, f)
			}
		})
	}
}

// TestOneFamilyOfAShardStaysClosed while the other is translated.
func TestOneFamilyOfAShardStaysClosed(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	p.objects.deleteShard(shardName)
	p.objects.shard("galactic-system/second", "node-a", public(testenv.IPv6, 200).String())
	p.settle()
	outside := overTCP().serveOn(t, p.topo.Ext.NS, 0)
	require.Equal(t, public(testenv.IPv6, 200), overTCP().leavesWith(t, p.topo.Web.NS, outside.At(p.topo.Ext.Addr6())))
	p.requireClosed(t, testenv.IPv4)
}

// TestShardOpensWhenItGetsItsAddress: what was refused until then works from then on, also with the same ports.
func TestShardOpensWhenItGetsItsAddress(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	p.objects.deleteShard(shardName)
	p.objects.shard("galactic-system/second", "node-a")
	p.settle()
	outside := overUDP().serveOn(t, p.topo.Ext.NS, 0)
	for _, f := range testenv.Families() {
		testenv.Unreachable(t, "before there is an address", func() error {
			_, err := testenv.DialUDP(p.topo.Web.NS, testenv.LocalPort(4100), outside.At(p.topo.Ext.Addr(f)), soon)
			return err
		})
	}
	p.objects.shard("galactic-system/second", "node-a", dual(200)...)
	p.settle()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		conn := overUDP().connect(t, p.topo.Web.NS, testenv.LocalPort(4100), outside.At(p.topo.Ext.Addr(f)))
		require.Equal(t, public(f, 200), conn.SeenByPeer.Addr())
	})
}

// TestNodeWithoutTheRoleLeavesPrivateSourcesAlone: with the role off, and without a shard, as any router would.
func TestNodeWithoutTheRoleLeavesPrivateSourcesAlone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		role   nat.ShardRole
		change func(*plane)
	}{
		"off":                  {nat.ShardOff, func(*plane) {}},
		"auto without a shard": {nat.ShardAuto, func(p *plane) { p.objects.deleteShard(shardName) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := shardPlane(t, withRole(c.role))
			c.change(p)
			p.settle()
			outside := overTCP().serveOn(t, p.topo.Ext.NS, 0)
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				require.Equal(t, p.topo.Web.Addr(f), overTCP().leavesWith(t, p.topo.Web.NS, outside.At(p.topo.Ext.Addr(f))))
			})
		})
	}
}

// TestShardAddressAnswersNobody: unsolicited packets go no further than the node, do not go back to the router, and leave no flow.
func TestShardAddressAnswersNobody(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	ext, node := p.topo.Ext, p.topo.NodeA
	overTCP().serveOn(t, node.NS, 22)
	outside := overUDP().serveOn(t, ext.NS, 0)
	uplink := testenv.CaptureT(t, node.NS, node.Uplink)
	atWeb := testenv.CaptureT(t, p.topo.Web.NS, p.topo.Web.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		out := overUDP().connect(t, p.topo.Web.NS, anywhere(), outside.At(ext.Addr(f)))
		require.NoError(t, uplink.Reset())
		require.NoError(t, atWeb.Reset())
		src, dst := netip.AddrPortFrom(ext.Addr(f), 4000), netip.AddrPortFrom(public(f, 200), 22)
		inUse := netip.AddrPortFrom(public(f, 200), out.SeenByPeer.Port())
		packets := [][]byte{
			testenv.TCPSegment{Src: src, Dst: dst, Flags: testenv.SYN}.Packet(),
			testenv.TCPSegment{Src: src, Dst: dst, Seq: 1, Ack: 1, Flags: testenv.SYN | testenv.ACK}.Packet(),
			testenv.TCPSegment{Src: src, Dst: dst, Seq: 1, Ack: 1, Flags: testenv.ACK}.Packet(),
			testenv.TCPSegment{Src: src, Dst: dst, Seq: 1, Flags: testenv.RST}.Packet(),
			testenv.UDPDatagram{Src: src, Dst: dst, Payload: []byte("datagram")}.Packet(),
			testenv.UDPDatagram{Src: src, Dst: inUse, Payload: []byte("from another port than the peer's")}.Packet(),
			testenv.UDPDatagram{Src: netip.AddrPortFrom(p.topo.Ext2.Addr(f), outside.Addr().Port()), Dst: inUse, Payload: []byte("from another peer")}.Packet(),
			testenv.Echo{Src: ext.Addr(f), Dst: public(f, 200), ID: 9, Seq: 1}.Packet(),
			testenv.SCTPInit(src, dst, 1),
			testenv.IPHeader{Src: ext.Addr(f), Dst: public(f, 200), Proto: unix.IPPROTO_GRE}.Packet(make([]byte, 16)),
			testenv.IPHeader{Src: ext.Addr(f), Dst: public(f, 200), Proto: 253}.Packet(make([]byte, 16)),
		}
		for _, packet := range packets {
			send(t, ext.NS, packet)
		}
		require.NoError(t, out.RoundTrip())
		require.NoError(t, uplink.Flush())
		require.Equal(t, len(packets), uplink.Count(func(pk testenv.Packet) bool {
			return pk.Dir == testenv.In && pk.Dst == public(f, 200) && (pk.SrcPort != outside.Addr().Port() || pk.Src != ext.Addr(f))
		}), "all arrived, once")
		uplink.Never(t, "an answer or a loop", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.Out && pk.DstPort != outside.Addr().Port() && (pk.Dst == ext.Addr(f) || pk.Dst == public(f, 200))
		})
		atWeb.Never(t, "the packets of nobody", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.In && pk.Src != ext.Addr(f) && pk.Src.IsGlobalUnicast() || pk.Dir == testenv.In && pk.SrcPort == 4000
		})
		require.Empty(t, flowsTo(t, node, public(f, 200)))
	})
}
