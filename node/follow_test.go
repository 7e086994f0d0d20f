// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

func openIn(t *testing.T) (*testenv.NetNS, *Node) {
	t.Helper()
	ns := testenv.NewT(t, "node")
	n, err := Open(Options{NetNS: ns.FD()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, n.Close()) })
	return ns, n
}

func addAddr(t *testing.T, ns *testenv.NetNS, i int) {
	t.Helper()
	require.NoError(t, ns.AddAddr("lo", netip.MustParsePrefix(fmt.Sprintf("203.0.113.%d/32", i))))
}

// A subscription that fails, and one that breaks while it is used, are made anew, and what happened in between is found.
func TestRunSubscribesAgain(t *testing.T) {
	ns, n := openIn(t)
	sockets := make(chan *nl.NetlinkSocket, 10)
	var attempts atomic.Int64
	f := &following{node: n, changed: func() {}, subscribe: func() (*nl.NetlinkSocket, error) {
		if attempts.Add(1) == 1 {
			return nil, errors.New("no socket today")
		}
		socket, err := n.subscribe()
		if err == nil {
			sockets <- socket
		}
		return socket, err
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	addresses := func(want int) {
		t.Helper()
		testenv.Eventually(t, 5*time.Second, "addresses", func() error {
			if got := len(n.Facts().Addresses); got != want {
				return fmt.Errorf("%d, want %d", got, want)
			}
			return nil
		})
	}
	addAddr(t, ns, 1)
	addresses(1)
	require.NoError(t, (<-sockets).Close())
	addAddr(t, ns, 2)
	<-sockets
	addresses(2)
	addAddr(t, ns, 3)
	addresses(3)
	require.EqualValues(t, 3, attempts.Load())
}

// What the owner was told by TrackBackends is no news; what routes changed since is.
func TestOwnChangesOfBackendsAreNotAnnounced(t *testing.T) {
	ns, n := openIn(t)
	peer := testenv.NewT(t, "peer")
	for _, name := range []string{"a0", "b0"} {
		require.NoError(t, testenv.Link(testenv.Side{NS: ns, Name: name}, testenv.Side{NS: peer, Name: "p" + name}))
	}
	backend := netip.MustParseAddr("10.244.1.10")
	way := testenv.Route{Dst: netip.PrefixFrom(backend, 32), Dev: "a0"}
	require.NoError(t, ns.SetRoute(way))
	_, err := n.TrackBackends([]netip.Addr{backend}, nil)
	require.NoError(t, err)
	calls := 0
	f := &following{node: n, changed: func() { calls++ }}
	require.True(t, f.look())
	require.Zero(t, calls)
	way.Dev = "b0"
	require.NoError(t, ns.SetRoute(way))
	require.True(t, f.look())
	require.Equal(t, 1, calls)
	require.Equal(t, []string{"b0"}, n.WorkloadInterfaces())
}

// Lost events end nothing: everything is read again.
func TestLostEventsAreSignalled(t *testing.T) {
	ns, n := openIn(t)
	socket, err := n.subscribe()
	require.NoError(t, err)
	require.NoError(t, socket.SetReceiveBufferSize(1, false)) // the kernel makes it the smallest that it allows
	n.names.names[77] = "old"
	for i := range 100 {
		addAddr(t, ns, i)
	}
	events, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- n.receive(socket, events) }()
	<-events
	testenv.Eventually(t, 5*time.Second, "names are forgotten", func() error {
		n.names.mu.Lock()
		defer n.names.mu.Unlock()
		if len(n.names.names) > 0 {
			return errors.New("a name is remembered")
		}
		return nil
	})
	addAddr(t, ns, 200)
	<-events
	require.NoError(t, socket.Close())
	require.Error(t, <-ended)
}

// A thread that was in another namespace must not come back to the runtime there.
func TestNamespaceIsLeft(t *testing.T) {
	_, n := openIn(t)
	own, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	for range 100 {
		var inside string
		require.NoError(t, n.ns.do(func() error {
			inside, err = os.Readlink(threadNS)
			return err
		}))
		require.NotEqual(t, own, inside)
	}
	require.ErrorIs(t, n.ns.do(func() error { return unix.EPERM }), unix.EPERM)
	tasks, err := os.ReadDir("/proc/self/task")
	require.NoError(t, err)
	for _, task := range tasks {
		where, err := os.Readlink("/proc/self/task/" + task.Name() + "/ns/net")
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		require.Equal(t, own, where)
	}
}
