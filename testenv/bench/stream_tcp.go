// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// writeSize is what one call gives to the kernel, in bytes: few calls for much data.
const writeSize = 128 << 10

// tcpStream counts bytes.
type tcpStream struct {
	out, in *os.File
	buf     []byte
}

func openTCP(from, to end) (s stream, err error) {
	var listener net.Listener
	err = to.host.NS.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), to.addr.Port()).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, listener.Close()) }()
	out, err := dialIn(from.host.NS, "tcp", to.addr)
	if err != nil {
		return nil, err
	}
	defer out.Close() //nolint:errcheck // the stream has its own descriptors
	in, err := listener.Accept()
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // likewise
	t := &tcpStream{buf: make([]byte, writeSize)}
	if t.out, err = blocking(out.(*net.TCPConn)); err != nil {
		return nil, err
	}
	if t.in, err = blocking(in.(*net.TCPConn)); err != nil {
		return nil, errors.Join(err, t.out.Close())
	}
	return t, nil
}

func (s *tcpStream) close() error { return errors.Join(s.out.Close(), s.in.Close()) }

// run sends for that long and ends when everything has arrived.
func (s *tcpStream) run(d time.Duration) (flowing, error) {
	var group errgroup.Group
	var last atomic.Int64 // bytes of the slice, once known
	var total flowing
	var received time.Duration
	start := time.Now()
	group.Go(func() (err error) {
		total.cpu, err = onThread(func() error { return s.send(start.Add(d), &last) })
		return err
	})
	group.Go(func() (err error) {
		received, err = onThread(func() error { return s.receive(&last) })
		total.wall = time.Since(start)
		return err
	})
	err := group.Wait()
	total.cpu += received
	total.amount = float64(last.Load())
	return total, err
}

func (s *tcpStream) send(until time.Time, last *atomic.Int64) error {
	for sent := int64(0); ; {
		sent += writeSize
		final := time.Now().After(until)
		if final {
			// Said before it is written, so that the receiver does not wait for more.
			last.Store(sent)
		}
		for rest := s.buf; len(rest) > 0; {
			n, err := retry(func() (int, error) { return unix.Write(int(s.out.Fd()), rest) })
			if err != nil {
				return err
			}
			rest = rest[n:]
		}
		if final {
			return nil
		}
	}
}

func (s *tcpStream) receive(last *atomic.Int64) error {
	buf := make([]byte, 2*writeSize)
	for got := int64(0); last.Load() == 0 || got < last.Load(); {
		n, err := retry(func() (int, error) { return unix.Read(int(s.in.Fd()), buf) })
		if err != nil {
			return err
		}
		if n == 0 {
			return io.ErrUnexpectedEOF
		}
		got += int64(n)
	}
	return nil
}
