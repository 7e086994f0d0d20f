// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// requestTimeout bounds a request to the kernel, which answers in well under a millisecond.
const requestTimeout = 5 * time.Second

// Options say which node to look at.
type Options struct {
	// NetNS is a file descriptor of the network namespace that plays the node; 0 or less is the namespace of this process. It is
	// duplicated and may be closed after Open.
	NetNS int
	// Uplinks fixes the uplinks; by default they are the interfaces of the default routes.
	Uplinks []string
	// Tenants say which interfaces are tenants'.
	Tenants nat.Tenants
	// Log is silent while nothing changes; nil discards.
	Log *slog.Logger
}

// Node is this node. Its methods may be called from any goroutine.
type Node struct {
	ns    namespace
	route *netlink.Handle
	// dumps has strict checking (Linux 4.20), with which the kernel lists the one table that is asked for and not all, but refuses the
	// flags with which package netlink asks for a single IPv6 route.
	dumps   *netlink.Handle
	log     *slog.Logger
	fixed   []string
	tenants nat.Tenants
	names   *linkNames
	work    *workloads

	// again asks Run to look once more.
	again chan struct{}

	mu    sync.Mutex
	facts Facts
	// told is what the owner knows, from Open, TrackBackends and Run.
	told answers

	rulesMu sync.Mutex
	// rules are the routing rules that are kept; nil means that rules are no matter of ours yet.
	rules *keptRules
}

// Open looks at the node once. Without Run the facts stay as they are.
func Open(o Options) (*Node, error) {
	n := &Node{log: o.Log, tenants: o.Tenants, work: newWorkloads(), again: make(chan struct{}, 1)}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	if len(o.Uplinks) > 0 {
		n.fixed = slices.Compact(slices.Sorted(slices.Values(o.Uplinks)))
	}
	var err error
	if n.ns, err = openNamespace(o.NetNS); err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	if err := n.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("node: %w", err), n.Close())
	}
	return n, nil
}

func (n *Node) open() error {
	var err error
	if n.route, err = n.socket(); err != nil {
		return err
	}
	if n.dumps, err = n.socket(); err != nil {
		return err
	}
	if err := n.dumps.SetStrictCheck(true); err != nil {
		n.log.Debug("the kernel does not filter dumps", "error", err)
	}
	n.names = newLinkNames(n.route)
	n.facts, err = n.readFacts()
	n.told = answers{facts: n.facts}
	return err
}

func (n *Node) socket() (handle *netlink.Handle, err error) {
	err = n.ns.do(func() error {
		handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err == nil {
		err = handle.RetryInterrupted().SetSocketTimeout(requestTimeout)
	}
	if err != nil {
		return nil, fmt.Errorf("route socket: %w", err)
	}
	return handle, nil
}

// Close gives the sockets back. Run must have returned.
func (n *Node) Close() error {
	for _, handle := range []*netlink.Handle{n.route, n.dumps} {
		if handle != nil {
			_ = handle.Close() // nothing is lost with it
		}
	}
	return n.ns.close()
}

// Facts is what was read last.
func (n *Node) Facts() Facts {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.facts
}

// KernelRelease is what `uname -r` prints; empty when the kernel does not say.
func KernelRelease() string {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return ""
	}
	return strings.Clone(unix.ByteSliceToString(uts.Release[:]))
}
