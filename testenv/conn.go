// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrWrongSource means that an answer came from another address than the one
// that was dialled.
var ErrWrongSource = errors.New("answered from another address")

// lineSize is the length of a round trip's request: about that of the answer.
const lineSize = 120

// Conn is the client's side of a conversation with a Server, one at a time.
type Conn struct {
	// Local and Remote are the addresses that the client sees.
	Local, Remote netip.AddrPort
	// SeenByPeer is the client's address as the server saw it at last, PeerLocal
	// the server's own address.
	SeenByPeer, PeerLocal netip.AddrPort
	// RepliedFrom is where the last answer came from.
	RepliedFrom netip.AddrPort

	timeout time.Duration
	once    sync.Once
	conn    net.Conn // TCP
	lines   *bufio.Reader
	packets *net.UDPConn // UDP
}

// LocalPort is a local address for DialTCP and DialUDP that fixes the port
// only.
func LocalPort(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.Addr{}, port) }

// DialTCP connects to a Server from a namespace and makes one round trip. The
// timeout holds for the connect and for each round trip. The local address may
// be partly or wholly zero; several connections may share it.
func DialTCP(ns *NetNS, local, remote netip.AddrPort, timeout time.Duration) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	dialer := net.Dialer{Control: reuseAddress}
	if local.IsValid() || local.Port() != 0 {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(bindAddr(local, remote))
	}
	c := &Conn{Remote: remote, timeout: timeout}
	err := ns.Do(func() (err error) {
		c.conn, err = dialer.DialContext(ctx, "tcp", remote.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("from namespace %s: %w", ns.name, err)
	}
	c.Local, c.lines = addrPort(c.conn.LocalAddr()), bufio.NewReader(c.conn)
	return c.begin()
}

// DialUDP is DialTCP for UDP. The socket is not connected, so that an answer
// from a wrong address is noticed: it is an ErrWrongSource.
func DialUDP(ns *NetNS, local, remote netip.AddrPort, timeout time.Duration) (*Conn, error) {
	c := &Conn{Remote: remote, timeout: timeout}
	err := ns.Do(func() error {
		at := bindAddr(local, remote)
		if at.Addr().IsUnspecified() {
			// A connected socket tells which source the kernel would choose.
			probe, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(remote))
			if err != nil {
				return err
			}
			at = netip.AddrPortFrom(addrPort(probe.LocalAddr()).Addr(), at.Port())
			if err := probe.Close(); err != nil {
				return err
			}
		}
		config := net.ListenConfig{Control: reuseAddress}
		conn, err := config.ListenPacket(context.Background(), listenNetwork("udp", at), at.String())
		if err != nil {
			return err
		}
		c.packets = conn.(*net.UDPConn)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("from namespace %s: %w", ns.name, err)
	}
	c.Local = addrPort(c.packets.LocalAddr())
	return c.begin()
}

// Also starts a second UDP conversation from the same socket, so from the same
// address and port, to another server. Use the two by turns; closing the first
// ends both.
func (c *Conn) Also(remote netip.AddrPort) (*Conn, error) {
	if c.packets == nil {
		return nil, errors.New("only a UDP socket has several conversations")
	}
	second := &Conn{Local: c.Local, Remote: remote, timeout: c.timeout, packets: c.packets}
	second.once.Do(func() {}) // not its socket to close
	return second.begin()
}

func (c *Conn) begin() (*Conn, error) {
	if err := c.RoundTrip(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// RoundTrip sends a line and reads the answer, which must come from Remote.
func (c *Conn) RoundTrip() error { return c.RoundTripSize(lineSize) }

// RoundTripSize is RoundTrip with that many bytes of payload each way.
func (c *Conn) RoundTripSize(size int) error {
	id := requestID()
	seen, err := c.exchange(id, padded(id, size))
	if err != nil {
		return fmt.Errorf("round trip %s to %s: %w", c.Local, c.Remote, err)
	}
	c.SeenByPeer, c.PeerLocal = seen.Peer, seen.Local
	return nil
}

// Send sends one line or datagram and does not wait for the answer.
func (c *Conn) Send() error {
	if err := c.write(padded(requestID(), lineSize)); err != nil {
		return fmt.Errorf("send %s to %s: %w", c.Local, c.Remote, err)
	}
	return nil
}

// Protocol is unix.IPPROTO_TCP or unix.IPPROTO_UDP.
func (c *Conn) Protocol() uint8 {
	if c.packets != nil {
		return unix.IPPROTO_UDP
	}
	return unix.IPPROTO_TCP
}

// SetTimeout changes how long a round trip may take.
func (c *Conn) SetTimeout(timeout time.Duration) { c.timeout = timeout }

// Close ends the conversation; more calls do nothing.
func (c *Conn) Close() (err error) {
	c.once.Do(func() {
		if c.packets != nil {
			err = c.packets.Close()
		} else {
			err = c.conn.Close()
		}
	})
	return err
}

// Abort ends a TCP connection with a reset, so that its port is free at once.
func (c *Conn) Abort() error {
	tcp, ok := c.conn.(*net.TCPConn)
	if !ok {
		return c.Close()
	}
	return errors.Join(tcp.SetLinger(0), c.Close())
}

// exchange skips the answers to earlier requests, which nobody waited for.
func (c *Conn) exchange(id string, request []byte) (seen Endpoints, err error) {
	deadline := time.Now().Add(c.timeout)
	if c.packets != nil {
		err = c.packets.SetDeadline(deadline)
	} else {
		err = c.conn.SetDeadline(deadline)
	}
	if err == nil {
		err = c.write(request)
	}
	for mine := false; err == nil && !mine; {
		var text string
		if text, err = c.read(); err == nil {
			seen, mine, err = parseAnswer(text, id)
		}
	}
	return seen, err
}

func (c *Conn) write(request []byte) (err error) {
	if c.packets != nil {
		_, err = c.packets.WriteToUDPAddrPort(request, c.Remote)
	} else {
		_, err = c.conn.Write(request)
	}
	return err
}

func (c *Conn) read() (string, error) {
	if c.packets == nil {
		c.RepliedFrom = c.Remote
		return c.lines.ReadString('\n')
	}
	answer := make([]byte, maxDatagram)
	n, from, err := c.packets.ReadFromUDPAddrPort(answer)
	if err != nil {
		return "", err
	}
	c.RepliedFrom = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
	if c.RepliedFrom != c.Remote {
		return "", fmt.Errorf("%w: %s", ErrWrongSource, c.RepliedFrom)
	}
	return string(answer[:n]), nil
}

func requestID() string { return strconv.FormatUint(rand.Uint64(), 36) }

// bindAddr completes a local address with the wildcard of the remote's family.
func bindAddr(local, remote netip.AddrPort) netip.AddrPort {
	if local.Addr().IsValid() {
		return local
	}
	return netip.AddrPortFrom(FamilyOf(remote.Addr()).Default().Addr(), local.Port())
}

// reuseAddress lets several clients of a host have the same address and port,
// to different servers. In UDP the last one to bind would get all datagrams,
// so there a port is one conversation's.
func reuseAddress(network, _ string, conn syscall.RawConn) error {
	if strings.HasPrefix(network, "udp") {
		return nil
	}
	var sockErr error
	err := conn.Control(func(fd uintptr) {
		sockErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	})
	return errors.Join(err, sockErr)
}
