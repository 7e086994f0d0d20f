// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// threadNS is the namespace of the calling thread. /proc/self would be that of
// the main thread, whichever thread asks.
const threadNS = "/proc/thread-self/ns/net"

// NetNS is a network namespace without an entry in the file system: it lives
// as long as its handle, a process or a socket in it. Its methods may be called
// from many goroutines.
type NetNS struct {
	name string
	file *os.File

	mu     sync.Mutex
	handle *netlink.Handle
}

// New makes a namespace whose loopback is up and whose IPv6 addresses are
// usable at once. The name is only for messages. It needs CAP_SYS_ADMIN.
func New(name string) (*NetNS, error) {
	ns := &NetNS{name: name}
	err := onOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		file, err := os.Open(threadNS)
		if err != nil {
			return err
		}
		ns.file = file
		return nil
	})
	if err == nil {
		err = ns.setUp()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", name, err), ns.Close())
	}
	return ns, nil
}

// NewT is New for a test, which closes the namespace when it ends.
func NewT(tb testing.TB, name string) *NetNS {
	tb.Helper()
	RequireRoot(tb)
	ns, err := New(name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := ns.Close(); err != nil {
			tb.Error(err)
		}
	})
	return ns
}

func (ns *NetNS) setUp() error {
	if err := ns.setAll(quietIPv6()); err != nil {
		return err
	}
	nl, err := ns.Netlink()
	if err != nil {
		return err
	}
	lo, err := nl.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := nl.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

// Name is the name given to New.
func (ns *NetNS) Name() string { return ns.name }

// FD is the file descriptor of the namespace, valid until Close.
func (ns *NetNS) FD() int { return int(ns.file.Fd()) }

// Path names the namespace for other processes, for instance
// `nsenter --net=PATH nft list ruleset`, as long as this process lives.
func (ns *NetNS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.FD()) }

// Netlink is a route socket inside the namespace. It belongs to the namespace:
// do not close it.
func (ns *NetNS) Netlink() (*netlink.Handle, error) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.handle != nil {
		return ns.handle, nil
	}
	handle, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink in namespace %s: %w", ns.name, err)
	}
	ns.handle = handle.RetryInterrupted()
	return ns.handle, nil
}

// Close gives the handles back. The kernel removes the namespace and all that
// is in it when the last socket and process there is gone.
func (ns *NetNS) Close() error {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.handle != nil {
		ns.handle.Close()
		ns.handle = nil
	}
	if ns.file == nil {
		return nil
	}
	return ns.file.Close()
}

// Do runs f on a thread inside the namespace and returns its error. Sockets
// opened by f stay in the namespace and may be used anywhere afterwards.
// Goroutines started by f are not in the namespace. A panic or a FailNow in f
// ends the caller as if f had been called directly.
func (ns *NetNS) Do(f func() error) error {
	return onOwnThread(func() error {
		if err := unix.Setns(ns.FD(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", ns.name, err)
		}
		return f()
	})
}
