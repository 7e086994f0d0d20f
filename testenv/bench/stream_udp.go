// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

// payload is that of a small packet, in bytes.
const payload = 64

// udpStream counts packets on the interface of the host that they go to. Nobody reads them there, so that the reader's wake-ups are no
// part of the figure.
type udpStream struct {
	out  *os.File
	sink *net.UDPConn
	to   *testenv.Host
}

func openUDP(from, to end) (stream, error) {
	s := &udpStream{to: to.host}
	err := to.host.NS.Do(func() error {
		conn, err := new(net.ListenConfig).ListenPacket(context.Background(), "udp",
			netip.AddrPortFrom(netip.IPv6Unspecified(), to.addr.Port()).String())
		if err == nil {
			s.sink = conn.(*net.UDPConn)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	out, err := dialIn(from.host.NS, "udp", to.addr)
	if err != nil {
		return nil, errors.Join(err, s.sink.Close())
	}
	defer out.Close() //nolint:errcheck // the stream has its own descriptor
	if err := s.establish(out.(*net.UDPConn)); err != nil {
		return nil, errors.Join(err, s.sink.Close())
	}
	if s.out, err = blocking(out.(*net.UDPConn)); err != nil {
		return nil, errors.Join(err, s.sink.Close())
	}
	return s, nil
}

// establish makes a round trip: to the kernel a flow is new until it was answered.
func (s *udpStream) establish(out *net.UDPConn) error {
	buf := make([]byte, payload)
	deadline := time.Now().Add(patience)
	if err := errors.Join(out.SetDeadline(deadline), s.sink.SetDeadline(deadline)); err != nil {
		return err
	}
	if _, err := out.Write(buf); err != nil {
		return err
	}
	n, client, err := s.sink.ReadFromUDPAddrPort(buf)
	if err != nil {
		return err
	}
	if _, err := s.sink.WriteToUDPAddrPort(buf[:n], client); err != nil {
		return err
	}
	_, err = out.Read(buf)
	return err
}

func (s *udpStream) close() error { return errors.Join(s.out.Close(), s.sink.Close()) }

func (s *udpStream) run(d time.Duration) (flowing, error) {
	before, err := s.arrived()
	if err != nil {
		return flowing{}, err
	}
	var total flowing
	start := time.Now()
	total.cpu, err = onThread(func() error { return s.send(start.Add(d)) })
	total.wall = time.Since(start)
	if err != nil {
		return flowing{}, err
	}
	after, err := s.arrived()
	total.amount = float64(after - before)
	return total, err
}

func (s *udpStream) send(until time.Time) error {
	const burst = 64 // packets between two looks at the clock
	buf, fd := make([]byte, payload), int(s.out.Fd())
	for time.Now().Before(until) {
		for range burst {
			if _, err := retry(func() (int, error) { return unix.Write(fd, buf) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// arrived is the number of packets that the host's interface has received.
func (s *udpStream) arrived() (uint64, error) {
	nl, err := s.to.NS.Netlink()
	if err != nil {
		return 0, err
	}
	link, err := nl.LinkByName("eth0")
	if err != nil {
		return 0, err
	}
	return link.Attrs().Statistics.RxPackets, nil
}
