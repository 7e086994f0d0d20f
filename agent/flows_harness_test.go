// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/testenv"
)

// cutWait is how long a test waits for an answer of a conversation that has ended: a hundred times what an open one takes.
const cutWait = 100 * time.Millisecond

// auditIsOff lets a person see that the tests of the flow audit fail without it: NATPLANE_TEST_NO_AUDIT=1 go test -run TestFlows ./agent.
func auditIsOff() bool { return os.Getenv("NATPLANE_TEST_NO_AUDIT") != "" }

// blindTable shows the audit an empty table of flows.
type blindTable struct{ conntrack.Table }

func (blindTable) Dump(context.Context, conntrack.Query, func(conntrack.Flow)) error { return nil }

// allFlows reads the flows of a node, by id.
func allFlows(t testing.TB, ns *testenv.NetNS) map[uint32]conntrack.Flow {
	t.Helper()
	table, err := conntrack.Open(ns.FD())
	require.NoError(t, err)
	flows := map[uint32]conntrack.Flow{}
	require.NoError(t, table.Dump(t.Context(), conntrack.Query{}, func(f conntrack.Flow) { flows[f.ID] = f }))
	return flows
}

// through lists the flows that dialled an address or leave with it.
func through(t testing.TB, ns *testenv.NetNS, public netip.Addr) []conntrack.Flow {
	t.Helper()
	var list []conntrack.Flow
	for _, f := range allFlows(t, ns) {
		if f.Orig.Dst == public || f.Reply.Dst == public {
			list = append(list, f)
		}
	}
	return list
}

// behind lists the flows that end or begin at a machine's own address.
func behind(t testing.TB, ns *testenv.NetNS, machine netip.Addr) []conntrack.Flow {
	t.Helper()
	var list []conntrack.Flow
	for _, f := range allFlows(t, ns) {
		if f.Orig.Src == machine || f.Reply.Src == machine {
			list = append(list, f)
		}
	}
	return list
}

// flowOf finds the one flow that a client's address and port began in the conversation's protocol.
func flowOf(t testing.TB, ns *testenv.NetNS, c *testenv.Conn) conntrack.Flow {
	t.Helper()
	var list []conntrack.Flow
	for _, f := range allFlows(t, ns) {
		from, to := netip.AddrPortFrom(f.Orig.Src, f.Orig.SrcPort), netip.AddrPortFrom(f.Orig.Dst, f.Orig.DstPort)
		if uint8(f.Protocol) == c.Protocol() && from == c.Local && to == c.Remote {
			list = append(list, f)
		}
	}
	require.Len(t, list, 1, "%s to %s", c.Local, c.Remote)
	return list[0]
}

// sender sends datagrams from one address and port to one other, all the time, and hears no answer. They differ in nothing but a number.
type sender struct {
	from, to netip.AddrPort
	sent     atomic.Int64
}

// sendAlways starts a sender that never pauses longer than a millisecond, until the test ends.
func sendAlways(t testing.TB, ns *testenv.NetNS, from, to netip.AddrPort) *sender {
	t.Helper()
	s := &sender{from: from, to: to}
	conn, err := udpSocket(ns, from)
	require.NoError(t, err)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			// A refusal, by the own node or an ICMP error, is no reason to stop.
			_, _ = conn.WriteToUDPAddrPort(fmt.Appendf(nil, "datagram %d", s.sent.Add(1)), to)
		}
	}()
	t.Cleanup(func() {
		close(quit)
		<-done
		require.NoError(t, conn.Close())
	})
	return s
}

func udpSocket(ns *testenv.NetNS, at netip.AddrPort) (conn *net.UDPConn, err error) {
	err = ns.Do(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		return err
	})
	return conn, err
}

// goesOn returns when the sender has sent some more.
func (s *sender) goesOn(t testing.TB) {
	t.Helper()
	until := s.sent.Load() + 20
	testenv.Eventually(t, patience, "the sender goes on", func() error {
		if n := s.sent.Load(); n < until {
			return fmt.Errorf("sent %d", n)
		}
		return nil
	})
}

// swallow takes datagrams at a port without an answer.
func swallow(t testing.TB, ns *testenv.NetNS, port uint16) {
	t.Helper()
	conn, err := udpSocket(ns, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
}

// datagrams matches what arrives from a port at a port of an address, as a capture at the receiver sees it.
func datagrams(to netip.AddrPort, fromPort uint16) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Proto == unix.IPPROTO_UDP && netip.AddrPortFrom(p.Dst, p.DstPort) == to && p.SrcPort == fromPort
	}
}

// echoes matches requests with an identifier that arrive at an address.
func echoes(to netip.Addr, id uint16) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Dst == to && p.ICMPID == id && (p.ICMPType == 8 || p.ICMPType == 128)
	}
}

// wire is what a machine's interface sees.
type wire struct {
	*testenv.Capture
	machine *testenv.Machine
}

func (p *plane) wire(t testing.TB, m *testenv.Machine) wire {
	return wire{testenv.CaptureT(t, m.NS, m.If), m}
}

// requireSilence shows that nothing of a sender reaches the machine any more, although the sender goes on.
func (w wire) requireSilence(t testing.TB, s *sender) {
	t.Helper()
	require.NoError(t, w.Reset())
	s.goesOn(t)
	w.Never(t, fmt.Sprintf("datagram of %s for %s at %s", s.from, s.to, w.machine.Name), func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Proto == unix.IPPROTO_UDP && p.SrcPort == s.from.Port() && p.Src == s.from.Addr()
	})
}

// requireSilentPort shows that nothing of a sender reaches one port of the machine any more.
func (w wire) requireSilentPort(t testing.TB, s *sender, port uint16) {
	t.Helper()
	require.NoError(t, w.Reset())
	s.goesOn(t)
	w.Never(t, fmt.Sprintf("datagram of %s at %s port %d", s.from, w.machine.Name, port), func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Src == s.from.Addr() && p.SrcPort == s.from.Port() && p.DstPort == port
	})
}

// translated leaves those whose destination or source was.
func translated(flows []conntrack.Flow) []conntrack.Flow {
	return slices.DeleteFunc(flows, func(f conntrack.Flow) bool { return f.Orig.Dst == f.Reply.Src && f.Orig.Src == f.Reply.Dst })
}

// isCut tells the errors of a conversation that was ended, also of one that was written to after the peer's reset.
func isCut(err error) bool {
	return testenv.IsUnreachable(err) || errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE)
}

// requireCut shows that a conversation has ended: no answer comes from where it was dialled.
func requireCut(t testing.TB, what string, c *testenv.Conn) {
	t.Helper()
	c.SetTimeout(cutWait)
	err := c.RoundTrip()
	require.Error(t, err, "%s: goes on", what)
	require.True(t, isCut(err), "%s: %v", what, err)
}

func requireOpen(t testing.TB, what string, c *testenv.Conn) {
	t.Helper()
	c.SetTimeout(patience)
	require.NoError(t, c.RoundTrip(), what)
}

// kept remembers the flows of conversations, which have to be the same flows later.
type kept struct {
	ns    *testenv.NetNS
	conns map[string]*testenv.Conn
	ids   map[string]uint32
}

func keep(t testing.TB, ns *testenv.NetNS, conns map[string]*testenv.Conn) kept {
	t.Helper()
	k := kept{ns, conns, map[string]uint32{}}
	for name, c := range conns {
		k.ids[name] = flowOf(t, ns, c).ID
	}
	return k
}

// require shows that the conversations go on and that their flows were never replaced.
func (k kept) require(t testing.TB) {
	t.Helper()
	for name, c := range k.conns {
		requireOpen(t, name, c)
		require.Equal(t, k.ids[name], flowOf(t, k.ns, c).ID, "%s: the flow is another one", name)
	}
}

// requireLegal shows that the state of the agent would create every flow of the node.
func (p *plane) requireLegal(t testing.TB, node string) {
	t.Helper()
	state, err := p.agents[node].agent.State(t.Context())
	require.NoError(t, err)
	index := conntrack.NewIndex(state)
	for _, f := range allFlows(t, p.node(node).NS) {
		require.Equal(t, conntrack.Legal, index.Judge(f, nil), "%v", f)
	}
}
