// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	captureBuffer = 64 << 20 // bytes; the kernel charges more than the payload
	maxPacket     = 1 << 17  // segmentation offload makes packets above 64 KiB
	shownPackets  = 5
)

// Capture records the IPv4 and IPv6 packets of one interface.
type Capture struct {
	name    string
	file    *os.File
	conn    syscall.RawConn
	scratch *NetNS // for settle: no filters there
	done    chan struct{}

	mu      sync.Mutex
	packets []Packet
	changed chan struct{} // closed when packets grows
	dropped uint32
	err     error
	buffer  []byte
}

// StartCapture begins to record. Packets sent after it returns are seen.
func StartCapture(ns *NetNS, ifname string) (*Capture, error) {
	c := &Capture{
		name: ns.name + "/" + ifname, done: make(chan struct{}),
		changed: make(chan struct{}), buffer: make([]byte, maxPacket),
	}
	err := ns.Do(func() error { return c.open(ifname) })
	if err == nil {
		c.conn, err = c.file.SyscallConn()
	}
	if err == nil {
		c.scratch, err = New("settle")
	}
	if err != nil {
		if c.file != nil {
			err = errors.Join(err, c.file.Close())
		}
		return nil, fmt.Errorf("capture on %s: %w", c.name, err)
	}
	go c.run()
	return c, nil
}

// CaptureT is StartCapture for a test, which ends it.
func CaptureT(tb testing.TB, ns *NetNS, ifname string) *Capture {
	tb.Helper()
	c, err := StartCapture(ns, ifname)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// Close ends the capture. What it recorded stays.
func (c *Capture) Close() error {
	err := c.file.Close()
	<-c.done
	return errors.Join(err, c.scratch.Close())
}

// Packets lists what was seen so far.
func (c *Capture) Packets() []Packet {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.packets)
}

// Count is how many of the packets seen so far match.
func (c *Capture) Count(match func(Packet) bool) int {
	n := 0
	for _, p := range c.Packets() {
		if match(p) {
			n++
		}
	}
	return n
}

// WaitFor returns the first packet that matches, already seen or to come.
func (c *Capture) WaitFor(timeout time.Duration, match func(Packet) bool) (Packet, bool) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for seen := 0; ; {
		c.mu.Lock()
		// Reset may have made the list shorter.
		fresh, changed := c.packets[min(seen, len(c.packets)):], c.changed
		seen = len(c.packets)
		c.mu.Unlock()
		if i := slices.IndexFunc(fresh, match); i >= 0 {
			return fresh[i], true
		}
		select {
		case <-changed:
		case <-timer.C:
			return Packet{}, false
		}
	}
}

// Flush returns when everything that was sent before it has been recorded. It
// fails if the capture missed a packet.
func (c *Capture) Flush() error { return FlushAll(c) }

// FlushAll is Flush for several captures at the price of one.
func FlushAll(captures ...*Capture) error {
	if len(captures) == 0 {
		return nil
	}
	if err := settle(captures[0].scratch); err != nil {
		return err
	}
	var errs []error
	for _, c := range captures {
		errs = append(errs, c.catchUp())
	}
	return errors.Join(errs...)
}

// ResetAll is Reset for several captures at the price of one.
func ResetAll(captures ...*Capture) error {
	err := FlushAll(captures...)
	for _, c := range captures {
		c.mu.Lock()
		c.packets = nil
		c.mu.Unlock()
	}
	return err
}

// Reset flushes and then forgets what was seen.
func (c *Capture) Reset() error { return ResetAll(c) }

// catchUp records what the socket holds, and fails if that is not everything.
func (c *Capture) catchUp() error {
	if err := c.conn.Control(c.drain); err != nil {
		return fmt.Errorf("capture on %s: %w", c.name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return fmt.Errorf("capture on %s: %w", c.name, c.err)
	}
	if c.dropped > 0 {
		return fmt.Errorf("capture on %s missed %d packets", c.name, c.dropped)
	}
	return nil
}

// Never fails the test if a packet that matches was seen, or may have been
// missed. The text says what must not happen.
func (c *Capture) Never(tb testing.TB, what string, match func(Packet) bool) {
	tb.Helper()
	if err := c.Flush(); err != nil {
		tb.Fatal(err)
	}
	var found []string
	for _, p := range c.Packets() {
		if match(p) {
			found = append(found, p.String())
		}
	}
	if len(found) > 0 {
		tb.Fatalf("%s: %d packets on %s, first:\n%s", what, len(found), c.name,
			strings.Join(found[:min(len(found), shownPackets)], "\n"))
	}
}

func (c *Capture) open(ifname string) error {
	iface, err := net.InterfaceByName(ifname)
	if err != nil {
		return err
	}
	// Protocol 0 receives nothing until bind names the interface.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	c.file = os.NewFile(uintptr(fd), "capture on "+c.name)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer); err != nil {
		return os.NewSyscallError("SO_RCVBUFFORCE", err)
	}
	// Only ETH_P_ALL sees what leaves: packet(7).
	to := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: iface.Index}
	return os.NewSyscallError("bind", unix.Bind(fd, to))
}

func (c *Capture) run() {
	defer close(c.done)
	err := c.conn.Read(func(fd uintptr) bool {
		c.drain(fd)
		return false // wait for more, until Close
	})
	if err != nil && !errors.Is(err, os.ErrClosed) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.err = err
	}
}

// drain records everything that the socket holds.
func (c *Capture) drain(fd uintptr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	grew := false
	for {
		n, from, err := unix.Recvfrom(int(fd), c.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENETDOWN) {
			continue // told once when the interface goes down: nothing was missed
		}
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			c.err = err
			break
		}
		grew = c.record(c.buffer[:n], from) || grew
	}
	// Reading the counters sets them to zero.
	if stats, err := unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err != nil {
		c.err = err
	} else {
		c.dropped += stats.Drops
	}
	if grew {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

func (c *Capture) record(data []byte, from unix.Sockaddr) bool {
	link, ok := from.(*unix.SockaddrLinklayer)
	if !ok || link.Protocol != htons(unix.ETH_P_IP) && link.Protocol != htons(unix.ETH_P_IPV6) {
		return false
	}
	p, err := ParsePacket(slices.Clone(data))
	if err != nil {
		c.err = err
		return false
	}
	p.Time, p.Dir = time.Now(), In
	if link.Pkttype == unix.PACKET_OUTGOING {
		p.Dir = Out
	}
	c.packets = append(c.packets, p)
	return true
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }
