// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

// flowing is what a stream carried in a slice of time.
type flowing struct {
	amount float64
	wall   time.Duration
	// cpu is the time of the threads that send and receive, with what the kernel forwards on their account: on veth links nearly
	// all of a packet's way is the sender's. A busy machine makes a stream slower, but its packets hardly dearer.
	cpu time.Duration
}

func (f flowing) perSecond() float64    { return f.amount / f.wall.Seconds() }
func (f flowing) perCPUSecond() float64 { return f.amount / f.cpu.Seconds() }

// stream is an established connection.
type stream interface {
	run(d time.Duration) (flowing, error)
	close() error
}

// end is a host, and the address at which the other one reaches it.
type end struct {
	host *testenv.Host
	addr netip.AddrPort
}

// threadTime is the processor time of this thread. Without CONFIG_IRQ_TIME_ACCOUNTING it includes interrupts.
func threadTime() (time.Duration, error) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano()), err
}

// onThread runs f on a thread of its own and returns the processor time that it took.
func onThread(f func() error) (time.Duration, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := threadTime()
	if err == nil {
		err = f()
	}
	after, timeErr := threadTime()
	return after - before, errors.Join(err, timeErr)
}

// blocking takes the socket of a connection from Go's poller: waiting in the kernel costs less, and costs the thread that waits.
func blocking(conn interface{ File() (*os.File, error) }) (*os.File, error) {
	f, err := conn.File()
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(int(f.Fd()), false); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// retry repeats a call that a signal interrupted; the Go runtime sends them to its threads.
func retry(f func() (int, error)) (int, error) {
	for {
		if n, err := f(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// dialIn opens a client's socket in a namespace.
func dialIn(ns *testenv.NetNS, network string, to netip.AddrPort) (conn net.Conn, err error) {
	err = ns.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: patience}).Dial(network, to.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("from %s: %w", ns.Name(), err)
	}
	return conn, nil
}

// patience is for what must happen at once, on however busy a machine.
const patience = 10 * time.Second
