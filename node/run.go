// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// settle is how long events are gathered before the node is looked at; one change of an interface is a dozen of them.
	settle = 20 * time.Millisecond
	// share bounds the part of the time that is spent on looking when events do not end: one in (share+1).
	share = 4
	// The wait before a failed subscription or reading is tried again.
	retryMin, retryMax = 50 * time.Millisecond, 10 * time.Second
	// eventBuffer, in bytes, holds some ten thousand events; more are lost, and noticed.
	eventBuffer = 4 << 20
)

// groups are all the multicast groups (rtnetlink(7)) whose events can change a fact: rules and next-hop objects move routes without
// an event of the routes themselves.
func groups() []uint {
	return []uint{
		unix.RTNLGRP_LINK,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
		unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_NEXTHOP,
	}
}

// Run follows the node until ctx ends. It calls changed after Facts or WorkloadInterfaces changed, never for anything else and never
// twice at a time.
func (n *Node) Run(ctx context.Context, changed func()) {
	f := &following{node: n, subscribe: n.subscribe, changed: changed}
	f.run(ctx)
}

// run subscribes again whenever the socket breaks.
func (f *following) run(ctx context.Context) {
	retry := retryMin
	for ctx.Err() == nil {
		begin := time.Now()
		err := f.subscribed(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begin) > retryMax {
			retry = retryMin
		}
		f.node.log.Warn("following the node's interfaces and routes failed", "error", err, "retry", retry)
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
		retry = min(2*retry, retryMax)
	}
}

// answers is everything that Run announces changes of.
type answers struct {
	facts     Facts
	workloads []string
}

type following struct {
	node      *Node
	subscribe func() (*nl.NetlinkSocket, error)
	changed   func()
	failed    bool
}

// subscribed gathers events and looks at the node after them, and once at the start for those before the subscription.
func (f *following) subscribed(ctx context.Context) error {
	socket, err := f.subscribe()
	if err != nil {
		return err
	}
	events, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() { ended <- f.node.receive(socket, events) }()
	stopped := false
	defer func() {
		_ = socket.Close() // ends receive
		if !stopped {
			<-ended
		}
	}()

	f.node.names.forgetAll()
	timer := time.NewTimer(0)
	defer timer.Stop()
	armed, pause, retry := true, settle, retryMin
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			stopped = true
			return err
		case <-events:
		case <-f.node.again:
		case <-timer.C:
			begin := time.Now()
			armed = !f.look()
			pause = max(settle, share*time.Since(begin))
			if armed {
				timer.Reset(retry)
				retry = min(2*retry, retryMax)
			} else {
				retry = retryMin
			}
			continue
		}
		if !armed {
			timer.Reset(pause)
			armed = true
		}
	}
}

func (n *Node) subscribe() (socket *nl.NetlinkSocket, err error) {
	err = n.ns.do(func() error {
		socket, err = nl.Subscribe(unix.NETLINK_ROUTE, groups()...)
		return err
	})
	if err != nil {
		return nil, err
	}
	// Forcing needs CAP_NET_ADMIN, which the agent has; a small buffer only means that events are lost sooner.
	_ = socket.SetReceiveBufferSize(eventBuffer, true)
	return socket, nil
}

// look reads everything and announces what is new. It reports false when something could not be read.
func (f *following) look() bool {
	n := f.node
	facts, err := n.readFacts()
	if err == nil {
		n.mu.Lock()
		n.facts = facts
		n.mu.Unlock()
	}
	err = errors.Join(err, n.lookUpAll(), n.syncTenantRules())
	if err != nil && !f.failed {
		n.log.Warn("reading the node's state failed, the last one stays", "error", err)
	}
	f.failed = err != nil
	if n.tell() {
		f.changed()
	}
	return err == nil
}

// tell reports whether the answers are other than those given before.
func (n *Node) tell() bool {
	now := answers{n.Facts(), n.WorkloadInterfaces()}
	n.mu.Lock()
	before := n.told
	n.told = now
	n.mu.Unlock()
	if now.facts.Equal(before.facts) && slices.Equal(now.workloads, before.workloads) {
		return false
	}
	n.log.Info("node changed", "addresses", len(now.facts.Addresses), "uplinks", now.facts.Uplinks, "workloads", now.workloads,
		"tenants", len(now.facts.Tenants))
	return true
}

// receive signals events until the socket is closed or broken.
func (n *Node) receive(socket *nl.NetlinkSocket, events chan<- struct{}) error {
	for {
		messages, from, err := socket.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS):
			// Events were lost; the socket goes on. What is read after this is newer than what was lost.
			n.names.forgetAll()
		case err != nil:
			return err
		case from.Pid != nl.PidKernel:
			continue
		}
		for _, m := range messages {
			if m.Header.Type == unix.RTM_NEWLINK || m.Header.Type == unix.RTM_DELLINK {
				n.forgetLink(m.Data)
			}
		}
		select {
		case events <- struct{}{}:
		default:
		}
	}
}

func (n *Node) forgetLink(data []byte) {
	if len(data) < unix.SizeofIfInfomsg {
		n.names.forgetAll()
		return
	}
	n.names.forget(int(nl.DeserializeIfInfomsg(data).Index))
}
