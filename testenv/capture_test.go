// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// verdict runs f with a stand-in for a test and returns why it failed.
type verdict struct {
	testing.TB
	text string
}

func (v *verdict) Helper()                   {}
func (v *verdict) Fatal(args ...any)         { v.fail(fmt.Sprint(args...)) }
func (v *verdict) Fatalf(f string, a ...any) { v.fail(fmt.Sprintf(f, a...)) }
func (v *verdict) fail(text string)          { v.text = text; runtime.Goexit() }
func failure(t *testing.T, f func(testing.TB)) string {
	v := &verdict{TB: t}
	done := make(chan struct{})
	go func() { defer close(done); f(v) }()
	<-done
	return v.text
}

func TestCaptureKnowsDirections(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	up := CaptureT(t, topo.NodeA.NS, topo.NodeA.Uplink)
	inner := CaptureT(t, topo.NodeA.NS, topo.Web.NodeIf)
	for _, f := range Families() {
		ext, web := topo.Ext.Addr(f), topo.Web.Addr(f)
		_, err := Ping(topo.Ext.NS, ext, web, testTimeout)
		require.NoError(t, err)
		request, reply := echoTypes(f)
		for _, want := range []struct {
			at       *Capture
			dir      Direction
			src, dst netip.Addr
			typ      uint8
		}{
			{up, In, ext, web, request}, {inner, Out, ext, web, request},
			{inner, In, web, ext, reply}, {up, Out, web, ext, reply},
		} {
			match := func(p Packet) bool {
				return p.Dir == want.dir && p.Src == want.src && p.Dst == want.dst && p.ICMPType == want.typ
			}
			_, ok := want.at.WaitFor(testTimeout, match)
			require.True(t, ok, "%+v", want)
			require.NoError(t, want.at.Flush())
			require.Equal(t, 1, want.at.Count(match), "%+v", want)
		}
	}
}

func TestCaptureParsesTransports(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	seen := CaptureT(t, topo.Web.NS, topo.Web.If)
	for _, f := range Families() {
		srv := ListenTCP(t, topo.Web.NS, netip.AddrPortFrom(topo.Web.Addr(f), 80))
		c := dialTCP(t, topo.Ext.NS, LocalPort(4000), srv.Addr())
		p, ok := seen.WaitFor(testTimeout, func(p Packet) bool { return p.TCPFlags == SYN|ACK && p.Dst == topo.Ext.Addr(f) })
		require.True(t, ok)
		require.Equal(t, c.Remote, netip.AddrPortFrom(p.Src, p.SrcPort))
		require.Equal(t, c.Local, netip.AddrPortFrom(p.Dst, p.DstPort))
		require.EqualValues(t, unix.IPPROTO_TCP, p.Proto)
		require.EqualValues(t, defaultTTL, p.TTL)

		udp := dialUDP(t, topo.Ext.NS, LocalPort(4001), ListenUDP(t, topo.Web.NS, srv.Addr()).Addr())
		require.NoError(t, udp.RoundTripSize(4000))
		for _, first := range []bool{true, false} {
			_, ok = seen.WaitFor(testTimeout, func(p Packet) bool {
				return p.Fragment && p.Proto == unix.IPPROTO_UDP && p.Src == topo.Ext.Addr(f) && (p.SrcPort == 4001) == first
			})
			require.True(t, ok, "%s first fragment %v", f, first)
		}
	}
}

func TestNeverSeesEverythingSentBefore(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	up := CaptureT(t, topo.NodeB.NS, topo.NodeB.Uplink)
	for i := range 200 {
		f := Families()[i%2]
		echo := Echo{Src: topo.Web.Addr(f), Dst: topo.Mail.Addr(f), ID: uint16(i)}
		require.NoError(t, SendIP(topo.Web.NS, echo.Packet()))
		match := func(p Packet) bool { return p.Dir == Out && p.Src == topo.Mail.Addr(f) && p.ICMPID == uint16(i) }
		text := failure(t, func(tb testing.TB) { up.Never(tb, "an answer", match) })
		require.Contains(t, text, "an answer: 1 packets", "packet %d", i)
	}
	require.NoError(t, up.Reset())
	require.Empty(t, failure(t, func(tb testing.TB) { up.Never(tb, "anything", func(Packet) bool { return true }) }))
}

func TestFlushWaitsForPacketsUnderWay(t *testing.T) {
	t.Parallel()
	const senders, each = 4, 150 // below net.core.netdev_max_backlog, 1000
	topo := NewTopology(t)
	up := CaptureT(t, topo.NodeB.NS, topo.NodeB.Uplink)
	echo := Echo{Src: topo.Web.Addr4(), Dst: topo.Mail.Addr4(), ID: 3}
	require.NoError(t, SendIP(topo.Web.NS, echo.Packet()))
	fd, err := rawSocket(topo.Web.NS, IPv4, unix.IPPROTO_RAW)
	require.NoError(t, err)
	for range 10 {
		require.NoError(t, up.Reset())
		var group sync.WaitGroup
		errs := make(chan error, senders*each)
		for range senders {
			group.Go(func() {
				for range each {
					errs <- unix.Sendto(fd, echo.Packet(), 0, sockaddr(echo.Dst))
				}
			})
		}
		group.Wait()
		require.NoError(t, up.Flush())
		got := up.Count(func(p Packet) bool { return p.Dir == Out && p.ICMPID == echo.ID })
		close(errs)
		for err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, senders*each, got)
	}
	require.NoError(t, unix.Close(fd))
}

func TestNeverFailsWhenPacketsWereMissed(t *testing.T) {
	t.Parallel()
	topo := NewTopology(t)
	seen := CaptureT(t, topo.Web.NS, topo.Web.If)
	require.NoError(t, seen.conn.Control(func(fd uintptr) {
		require.NoError(t, unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
	}))
	seen.mu.Lock() // the reader cannot empty the buffer meanwhile
	for range 50 {
		require.NoError(t, SendIP(topo.Web.NS, Echo{Src: topo.Web.Addr4(), Dst: topo.Ext.Addr4(), Payload: make([]byte, 1000)}.Packet()))
	}
	seen.mu.Unlock()
	text := failure(t, func(tb testing.TB) { seen.Never(tb, "nothing", func(Packet) bool { return false }) })
	require.True(t, strings.Contains(text, "missed"), text)
}

func TestWaitForGivesUp(t *testing.T) {
	t.Parallel()
	ns := NewT(t, "quiet")
	lo := CaptureT(t, ns, "lo")
	start := time.Now()
	_, ok := lo.WaitFor(20*time.Millisecond, func(Packet) bool { return true })
	require.False(t, ok)
	require.GreaterOrEqual(t, time.Since(start), 20*time.Millisecond)
	_, err := StartCapture(ns, "none")
	require.ErrorContains(t, err, "quiet/none")
}

func TestEventually(t *testing.T) {
	t.Parallel()
	calls := 0
	Eventually(t, testTimeout, "third call", func() error {
		if calls++; calls < 3 {
			return fmt.Errorf("call %d", calls)
		}
		return nil
	})
	text := failure(t, func(tb testing.TB) {
		Eventually(tb, time.Millisecond, "never", func() error { return fmt.Errorf("still not") })
	})
	require.Contains(t, text, "never: not within 1ms: still not")
}

func TestMissingToolFailsInCI(t *testing.T) {
	t.Setenv("CI", "true")
	text := failure(t, func(tb testing.TB) { RequireTool(tb, "no-such-program") })
	require.Contains(t, text, "no-such-program")
}
