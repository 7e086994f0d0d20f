// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// answerTimeout bounds one exchange with the kernel, which answers before the request returns or not at all. The largest
	// transaction and the reading of the largest set take seconds.
	answerTimeout = 30 * time.Second
	// writeBuffer is the largest transaction, in bytes; readBuffer holds the kernel's answers to one. They are limits: memory is
	// only taken while it is used.
	writeBuffer = 512 << 20
	readBuffer  = 16 << 20
	// dumpSize is the most that the kernel returns in one message of a dump, in bytes.
	dumpSize = 32 << 10
)

// conn is a lasting connection: the owner of a table is a connection, and a new one for each transaction would cost more.
type conn struct {
	*nftables.Conn
	sock *netlink.Conn
	port uint32
	// timeout is answerTimeout, but in tests.
	timeout time.Duration
}

func dial(netns int) (*conn, error) {
	c := &conn{timeout: answerTimeout}
	// Given an option, the library leaves the sizes of the buffers to us.
	capture := func(sock *netlink.Conn) error {
		c.sock, c.port = sock, sock.PID()
		return errors.Join(sock.SetWriteBuffer(writeBuffer), sock.SetReadBuffer(readBuffer))
	}
	var err error
	c.Conn, err = nftables.New(nftables.AsLasting(), nftables.WithNetNSFd(netns), nftables.WithSockOptions(capture))
	if err == nil {
		err = c.do(c.askForLargeDumps)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("nftables socket: %w", err), c.close())
	}
	return c, nil
}

func (c *conn) close() error {
	if c.Conn == nil {
		return nil
	}
	return c.CloseLasting()
}

// do runs one exchange with the kernel, and closes the connection if that does not end: a deadline on the socket would make
// the library, which goes on reading after an error, spin.
func (c *conn) do(exchange func() error) error {
	watchdog := time.AfterFunc(c.timeout, func() { _ = c.sock.Close() })
	err := exchange()
	if !watchdog.Stop() {
		return fmt.Errorf("no answer from the kernel within %v: %w", c.timeout, errors.Join(unix.ETIMEDOUT, err))
	}
	return err
}

// askForLargeDumps reads one small answer into a large buffer. The kernel fills messages of a dump up to the largest buffer
// that the socket was ever read with, and walks a set from its start for each message: 100,000 elements come faster
// in messages of 32 KiB than in the 4 KiB that they would be given.
func (c *conn) askForLargeDumps() error {
	request := netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request},
		Data:   []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	}
	if _, err := c.sock.Send(request); err != nil {
		return err
	}
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return err
	}
	var readErr error
	buf := make([]byte, dumpSize)
	err = raw.Read(func(fd uintptr) bool {
		_, _, readErr = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(readErr, unix.EAGAIN)
	})
	return errors.Join(err, readErr)
}

// isKernelError tells an error of the kernel or the socket from one of the library about something that it cannot parse.
func isKernelError(err error) bool {
	var errno syscall.Errno
	var op *netlink.OpError
	return errors.As(err, &errno) || errors.As(err, &op)
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) }
