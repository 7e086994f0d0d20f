// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// movingShard is a machine with its conversations, whose shard moves from node to node, and the machine with it.
type movingShard struct {
	*plane
	t       *testing.T
	machine *roamer
	tcp     *testenv.Server
	udp     *testenv.Server
	// conns were opened by the node that the shard was on before.
	conns map[testenv.Family][3]*testenv.Conn
}

const (
	// roamingPing is the identifier of the machine's pings, all with one sequence.
	roamingPing = 91
	toTCP       = 0
	toUDP       = 1
	closing     = 2 // TCP
)

func newMovingShard(t *testing.T, role nat.ShardRole) *movingShard {
	t.Helper()
	p := shardPlane(t, withRole(role))
	p.start("node-b", withRole(role))
	m := newRoamer(t, p.topo, "roamer", netip.MustParseAddr("10.244.9.91"), netip.MustParseAddr("fd00:10:244:9::91"))
	p.settle()
	return &movingShard{
		plane: p, t: t, machine: m, tcp: overTCP().serveOn(t, p.topo.Ext.NS, 0), udp: overUDP().serveOn(t, p.topo.Ext.NS, 0),
	}
}

// converse opens a connection, a UDP flow and a ping in each family.
func (s *movingShard) converse() {
	s.t.Helper()
	s.conns = map[testenv.Family][3]*testenv.Conn{}
	for _, f := range testenv.Families() {
		tcp := overTCP().connect(s.t, s.machine.NS, anywhere(), s.tcp.At(s.topo.Ext.Addr(f)))
		udp := overUDP().connect(s.t, s.machine.NS, anywhere(), s.udp.At(s.topo.Ext.Addr(f)))
		require.Equal(s.t, public(f, 200), tcp.SeenByPeer.Addr())
		require.Equal(s.t, public(f, 200), udp.SeenByPeer.Addr())
		require.NoError(s.t, s.ping(f))
		s.conns[f] = [3]*testenv.Conn{tcp, udp, overTCP().connect(s.t, s.machine.NS, anywhere(), s.tcp.At(s.topo.Ext.Addr(f)))}
	}
}

func (s *movingShard) ping(f testenv.Family) error {
	_, err := testenv.Echo{Dst: s.topo.Ext.Addr(f), ID: roamingPing, Seq: 1}.Ping(s.machine.NS, patience)
	return err
}

// moves takes the shard to a node, and the machine with it. The network still sends the address to the node it was on.
func (s *movingShard) moves(to *testenv.Node) {
	s.t.Helper()
	s.objects.shard(shardName, to.Name, dual(200)...)
	s.settle()
	s.machine.move(to)
}

// requireLeft shows that a node has forgotten the shard: it neither answers for the address nor translates with it, and what the network
// still sends there leaves no flow and goes no further.
func (s *movingShard) requireLeft(node *testenv.Node) {
	t, ext := s.t, s.topo.Ext
	t.Helper()
	uplink := testenv.CaptureT(t, node.NS, node.Uplink)
	for _, f := range testenv.Families() {
		require.Empty(t, through(t, node.NS, public(f, 200)), "flows of the address")
		sent := s.late(f)
		for _, packet := range sent {
			send(t, ext.NS, packet)
		}
		// What comes last is answered, so the others had their time.
		_, err := testenv.Echo{Dst: node.Addr(f), ID: 2, Seq: 1}.Ping(ext.NS, patience)
		require.NoError(t, err)
		require.NoError(t, uplink.Flush())
		require.Equal(t, len(sent), uplink.Count(func(pk testenv.Packet) bool { return pk.Dir == testenv.In && pk.Dst == public(f, 200) }), "all came, once")
		uplink.Never(t, "an answer, a loop or a translation", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.Out && (pk.Src == public(f, 200) || pk.Dst == public(f, 200))
		})
		require.Empty(t, through(t, node.NS, public(f, 200)), "flows of the address")
		table := node.NS.Nft(t, "list", "map", "inet", "natplane", map[testenv.Family]string{testenv.IPv4: "shard4", testenv.IPv6: "shard6"}[f])
		require.NotContains(t, table, public(f, 200).String())
	}
}

// late are the packets of a peer that has not heard yet: of the conversations, and of nobody.
func (s *movingShard) late(f testenv.Family) [][]byte {
	tcp, udp := s.conns[f][toTCP], s.conns[f][toUDP]
	nobody := netip.AddrPortFrom(public(f, 200), 22)
	return [][]byte{
		testenv.TCPSegment{Src: tcp.Remote, Dst: tcp.SeenByPeer, Seq: 1, Ack: 1, Flags: testenv.ACK, Payload: []byte("late")}.Packet(),
		testenv.TCPSegment{Src: tcp.Remote, Dst: nobody, Seq: 1, Flags: testenv.SYN}.Packet(),
		testenv.UDPDatagram{Src: udp.Remote, Dst: udp.SeenByPeer, Payload: []byte("late")}.Packet(),
		testenv.Echo{Src: s.topo.Ext.Addr(f), Dst: public(f, 200), ID: roamingPing, Seq: 1}.Packet(),
	}
}

// requireGoesOnOrEnds shows what becomes of the conversations behind the node that the shard is on now, once the network has followed.
func (s *movingShard) requireGoesOnOrEnds(node *testenv.Node) {
	t := s.t
	t.Helper()
	atMachine := testenv.CaptureT(t, s.machine.NS, s.machine.plug[node])
	for _, f := range testenv.Families() {
		tcp, udp := s.conns[f][toTCP], s.conns[f][toUDP]
		// The ports are chosen at random, so the peer sees the middle of a connection that it does not have, and says so.
		tcp.SetTimeout(patience)
		require.ErrorIs(t, tcp.RoundTrip(), unix.ECONNRESET)
		arrival(t, atMachine, "the peer's reset", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.In && pk.TCPFlags&testenv.RST != 0 && netip.AddrPortFrom(pk.Src, pk.SrcPort) == tcp.Remote
		})
		udp.SetTimeout(patience)
		require.NoError(t, udp.RoundTrip())
		require.Equal(t, public(f, 200), udp.SeenByPeer.Addr())
		require.NoError(t, s.ping(f))
		// A connection that begins with its end is none, so this stays in.
		before := s.counterOf(node.Name, leakComment)
		require.NoError(t, s.conns[f][closing].Close())
		testenv.Eventually(t, patience, "the end of a connection is dropped", func() error {
			if s.counterOf(node.Name, leakComment) == before {
				return errors.New("not counted")
			}
			return nil
		})
	}
}

// TestFieldCase_B91_ShardMovesToAnotherNode with the machines behind it, and back. Connections end with a reset, datagrams go on, and nobody
// sees another source than the shard's address.
func TestFieldCase_B91_ShardMovesToAnotherNode(t *testing.T) {
	t.Parallel()
	for _, role := range []nat.ShardRole{nat.ShardAuto, nat.ShardOn} {
		t.Run(string(role), func(t *testing.T) {
			t.Parallel()
			s := newMovingShard(t, role)
			way := []*testenv.Node{s.topo.NodeA, s.topo.NodeB, s.topo.NodeA}
			if role == nat.ShardOn {
				defer s.watch(way[:2]...)()
			}
			for i, to := range way[1:] {
				s.converse()
				s.moves(to)
				// Without the role, which a node has lost with its shard, it is a router as any other.
				judge := s.watch(to)
				s.requireLeft(way[i])
				s.announce(200, to)
				s.requireGoesOnOrEnds(to)
				judge()
			}
		})
	}
}

// watch returns a judgement on what has left nodes since, and what a client has seen: no other source than the shard's address.
func (s *movingShard) watch(nodes ...*testenv.Node) (judge func()) {
	s.t.Helper()
	var uplinks []*testenv.Capture
	for _, node := range nodes {
		uplinks = append(uplinks, testenv.CaptureT(s.t, node.NS, node.Uplink))
	}
	atExt := testenv.CaptureT(s.t, s.topo.Ext.NS, clientIf)
	return func() {
		s.t.Helper()
		for _, uplink := range uplinks {
			uplink.Never(s.t, "a private source", isPrivate)
		}
		atExt.Never(s.t, "another source than the shard's address", func(pk testenv.Packet) bool {
			f := testenv.FamilyOf(pk.Src)
			return pk.Dir == testenv.In && (pk.Proto == unix.IPPROTO_TCP || pk.Proto == unix.IPPROTO_UDP) && pk.Src != public(f, 200)
		})
	}
}
