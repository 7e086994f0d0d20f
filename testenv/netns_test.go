// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func currentNS(t *testing.T) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	link, err := os.Readlink(threadNS)
	require.NoError(t, err)
	return link
}

func insideNS(ns *NetNS) (string, error) {
	var link string
	err := ns.Do(func() (err error) {
		link, err = os.Readlink(threadNS)
		return err
	})
	return link, err
}

func TestNamespacesAreIsolated(t *testing.T) {
	t.Parallel()
	a, b := NewT(t, "a"), NewT(t, "b")
	linkA, err := insideNS(a)
	require.NoError(t, err)
	linkB, err := insideNS(b)
	require.NoError(t, err)
	require.NotEqual(t, linkA, linkB)
	require.NotEqual(t, linkA, currentNS(t))

	nlA, err := a.Netlink()
	require.NoError(t, err)
	require.NoError(t, nlA.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "only-a"}}))
	_, err = nlA.LinkByName("only-a")
	require.NoError(t, err)
	nlB, err := b.Netlink()
	require.NoError(t, err)
	_, err = nlB.LinkByName("only-a")
	require.ErrorAs(t, err, &netlink.LinkNotFoundError{})

	require.NoError(t, a.Sysctl("net/ipv4/ip_forward", "1"))
	value, err := b.ReadSysctl("net/ipv4/ip_forward")
	require.NoError(t, err)
	require.Equal(t, "0", value)
}

func TestDoIsSafeWithManyGoroutines(t *testing.T) {
	t.Parallel()
	origin := currentNS(t)
	spaces := make(map[*NetNS]string)
	for i := range 4 {
		ns := NewT(t, fmt.Sprintf("ns%d", i))
		link, err := insideNS(ns)
		require.NoError(t, err)
		spaces[ns] = link
	}
	var group sync.WaitGroup
	errs := make(chan error, 4*200)
	for ns, want := range spaces {
		for range 100 {
			group.Go(func() {
				errs <- ns.Do(func() error {
					runtime.Gosched()
					if unix.Gettid() == os.Getpid() {
						return errors.New("the main thread is inside")
					}
					got, err := os.Readlink(threadNS)
					if err == nil && got != want {
						err = fmt.Errorf("inside %s, want %s", got, want)
					}
					return err
				})
			})
			group.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				// /proc/self is the main thread, which others look at.
				var err error
				for _, path := range []string{threadNS, "/proc/self/ns/net"} {
					got, readErr := os.Readlink(path)
					if readErr == nil && got != origin {
						readErr = fmt.Errorf("%s is %s, want %s", path, got, origin)
					}
					err = errors.Join(err, readErr)
				}
				errs <- err
			})
		}
	}
	group.Wait()
	close(errs)
	for err := range errs {
		require.NoError(t, err)
	}
}

func TestDoEndsLikeItsFunction(t *testing.T) {
	t.Parallel()
	ns := NewT(t, "ends")
	origin := currentNS(t)
	boom := errors.New("boom")
	require.ErrorIs(t, ns.Do(func() error { return boom }), boom)
	require.Panics(t, func() { _ = ns.Do(func() error { panic(boom) }) })

	reached, exited := false, make(chan struct{})
	go func() {
		defer close(exited)
		_ = ns.Do(func() error { runtime.Goexit(); return nil })
		reached = true
	}()
	<-exited
	require.False(t, reached, "a FailNow inside Do must end the caller")
	require.Equal(t, origin, currentNS(t))
}

func TestChildRunsInside(t *testing.T) {
	t.Parallel()
	ns := NewT(t, "child")
	want, err := insideNS(ns)
	require.NoError(t, err)
	got, err := ns.Run(t.Context(), "readlink", "/proc/self/ns/net")
	require.NoError(t, err)
	require.Equal(t, want, strings.TrimSpace(got))

	_, err = ns.Run(t.Context(), "sh", "-c", "echo words; exit 3")
	require.ErrorContains(t, err, "words")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = ns.Run(ctx, "sleep", "60")
	require.Error(t, err)
}

func TestPathWorksFromAnotherProcess(t *testing.T) {
	t.Parallel()
	RequireTool(t, "nsenter")
	ns, other := NewT(t, "named"), NewT(t, "other")
	ns.NftScript(t, "table inet marker { }")
	out, err := other.Run(t.Context(), "nsenter", "--net="+ns.Path(), "nft", "list", "ruleset")
	require.NoError(t, err)
	require.Contains(t, out, "table inet marker")
	require.NotContains(t, other.Nft(t, "list", "ruleset"), "marker")
}
