// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// dumpBuffer is the size up to which the kernel fills one part of a dump
	// (netlink_dump in net/netlink/af_netlink.c caps it at 32 KiB).
	dumpBuffer = 32 << 10
	// deleteBatch flows go to the kernel in one call, which answers each of
	// them before it returns: the answers have to fit into the read buffer.
	deleteBatch = 128
	// readBuffer is asked for; the default of a node may be far smaller.
	readBuffer = 1 << 20
	// stall is how long the kernel may say nothing before the socket counts as
	// dead. A filtered dump is silent while it walks the whole table.
	stall = 30 * time.Second
	// stallCheck is the number of messages between two extensions of stall.
	stallCheck = 4096
)

// Netlink is the Table of the kernel. Every operation opens a socket of its
// own, so that one which failed or was broken off leaves nothing behind for
// the next.
type Netlink struct {
	netns  int
	filter filterSupport
}

// Open returns the table of the network namespace that the file descriptor
// netns refers to; 0 is the namespace of the caller. The descriptor has to stay
// open. It needs CAP_NET_ADMIN.
func Open(netns int) (*Netlink, error) {
	n := &Netlink{netns: netns}
	conn, err := n.dial()
	if err != nil {
		return nil, err
	}
	return n, conn.Close()
}

func (n *Netlink) dial() (*netlink.Conn, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: n.netns, MessageBufferSize: dumpBuffer})
	if err != nil {
		return nil, fmt.Errorf("conntrack socket: %w", err)
	}
	// Without it an error carries the request, and a batch of them overflows
	// the read buffer. The larger buffer is only a margin.
	if err := conn.SetOption(netlink.CapAcknowledge, true); err != nil {
		return nil, errors.Join(fmt.Errorf("conntrack socket: %w", err), conn.Close())
	}
	_ = conn.SetReadBuffer(readBuffer)
	return conn, nil
}

// with runs f on a new socket that dies with the context.
func (n *Netlink) with(ctx context.Context, f func(*netlink.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := n.dial()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	err = f(conn)
	if stop() {
		return errors.Join(err, conn.Close())
	}
	return errors.Join(ctx.Err(), err)
}

// Dump implements Table.
func (n *Netlink) Dump(ctx context.Context, q Query, visit func(Flow)) error {
	if q.byAddress() {
		if err := n.filter.check(ctx, n, q); err != nil {
			return err
		}
	}
	return n.dump(ctx, q, func(f Flow) {
		// The check has shown that the kernel selects; this makes a wrong
		// selection cost time and nothing else.
		if q.Matches(f) {
			visit(f)
		}
	})
}

// dump shows what the kernel answers, selected or not.
func (n *Netlink) dump(ctx context.Context, q Query, visit func(Flow)) error {
	req, err := dumpRequest(q)
	if err != nil {
		return err
	}
	err = n.with(ctx, func(conn *netlink.Conn) error { return receiveFlows(conn, req, needles(q.AnyOf), visit) })
	if err != nil {
		return fmt.Errorf("dump of flows: %w", err)
	}
	return nil
}

// needles are what the message of a flow with one of the addresses contains.
// Looking for them is many times cheaper than decoding.
func needles(addrs []netip.Addr) [][]byte {
	list := make([][]byte, 0, len(addrs))
	for _, a := range addrs {
		list = append(list, a.AsSlice())
	}
	return list
}

func containsAny(data []byte, needles [][]byte) bool {
	if len(needles) == 0 {
		return true
	}
	return slices.ContainsFunc(needles, func(n []byte) bool { return bytes.Contains(data, n) })
}

func receiveFlows(conn *netlink.Conn, req netlink.Message, anyOf [][]byte, visit func(Flow)) error {
	if err := conn.SetDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	if _, err := conn.Send(req); err != nil {
		return interrupted(err)
	}
	var first error
	// Of the flag on the closing message the library shows nothing. Dumps of
	// flows have been seen without it, even while flows came and went.
	interrupt, count := false, 0
	for m, err := range conn.ReceiveIter() {
		if err != nil {
			return interrupted(err)
		}
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			interrupt = true
		}
		if count++; count%stallCheck == 0 {
			if err := conn.SetDeadline(time.Now().Add(stall)); err != nil {
				return err
			}
		}
		if !containsAny(m.Data, anyOf) {
			continue
		}
		f, err := decodeFlow(m)
		if err != nil {
			if first == nil {
				first = err
			}
			continue
		}
		visit(f)
	}
	if interrupt {
		return ErrInterrupted
	}
	return first
}

// interrupted gives the errors that mean "ask again" their name: a table that
// changed too much, and a reader that was too slow.
func interrupted(err error) error {
	if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) {
		return fmt.Errorf("%w: %w", ErrInterrupted, err)
	}
	return err
}

// Delete implements Table.
func (n *Netlink) Delete(ctx context.Context, flows []Flow) (Result, error) {
	var d deletion
	if len(flows) == 0 {
		return d.Result, nil
	}
	err := n.with(ctx, func(conn *netlink.Conn) error { return d.run(conn, flows) })
	if err != nil {
		d.lose(len(flows))
		return d.Result, fmt.Errorf("delete flows: %w", err)
	}
	return d.Result, d.err()
}

// deletion collects what the kernel answers. It keeps one error and a number:
// half a million refusals must not become half a million strings.
type deletion struct {
	Result
	first error
}

// run sends the flows batch by batch. An error means that the socket is lost,
// and with it the answers that are outstanding: those flows are not counted.
func (d *deletion) run(conn *netlink.Conn, flows []Flow) error {
	for batch := range slices.Chunk(flows, deleteBatch) {
		if err := d.send(conn, batch); err != nil {
			return err
		}
	}
	return nil
}

func (d *deletion) err() error {
	if d.first == nil {
		return nil
	}
	return fmt.Errorf("%d of %d flows not deleted: %w", d.Failed, d.Failed+d.Deleted+d.Gone, d.first)
}

// lose counts as failed what of total flows has no answer.
func (d *deletion) lose(total int) { d.Failed = total - d.Deleted - d.Gone }

func (d *deletion) fail(err error) {
	d.Failed++
	if d.first == nil {
		d.first = err
	}
}

func (d *deletion) send(conn *netlink.Conn, flows []Flow) error {
	msgs := make([]netlink.Message, 0, len(flows))
	for _, f := range flows {
		m, err := deleteRequest(f)
		if err != nil {
			d.fail(err)
			continue
		}
		msgs = append(msgs, m)
	}
	if len(msgs) == 0 {
		return nil
	}
	if err := conn.SetDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	if _, err := conn.SendMessages(msgs); err != nil {
		return err
	}
	// The kernel works through a batch in its order and answers each message
	// by a datagram of its own.
	for range msgs {
		if err := d.answer(conn); err != nil {
			return err
		}
	}
	return nil
}

func (d *deletion) answer(conn *netlink.Conn) error {
	_, err := conn.Receive()
	var op *netlink.OpError
	switch {
	case err == nil:
		d.Deleted++
	case errors.As(err, &op) && op.Sequence != 0:
		// An answer of the kernel; an error of the socket has no number.
		if errors.Is(err, unix.ENOENT) {
			d.Gone++
		} else {
			d.fail(op.Err)
		}
	default:
		return err
	}
	return nil
}
