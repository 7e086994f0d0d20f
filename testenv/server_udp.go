// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const maxDatagram = 1 << 16

// ServeUDP starts a UDP server, see ServeTCP. It answers from the address that
// the datagram came to, on a wildcard too.
func ServeUDP(ns *NetNS, at netip.AddrPort) (*Server, error) {
	var conn net.PacketConn
	err := ns.Do(func() (err error) {
		config := net.ListenConfig{Control: wantPacketInfo}
		conn, err = config.ListenPacket(context.Background(), listenNetwork("udp", at), at.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("serve in namespace %s: %w", ns.name, err)
	}
	s := &Server{addr: addrPort(conn.LocalAddr()), close: conn.Close}
	s.work.Go(func() { s.serveDatagrams(conn.(*net.UDPConn)) })
	return s, nil
}

// ListenUDP is ServeUDP for a test, which stops the server.
func ListenUDP(tb testing.TB, ns *NetNS, at netip.AddrPort) *Server {
	tb.Helper()
	return forTest(tb)(ServeUDP(ns, at))
}

func (s *Server) serveDatagrams(conn *net.UDPConn) {
	data, control := make([]byte, maxDatagram), make([]byte, 256)
	for {
		n, m, _, from, err := conn.ReadMsgUDPAddrPort(data, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		to, reply, err := destination(control[:m])
		if err != nil {
			continue // the client gets no answer, and reports that
		}
		seen := Endpoints{
			Peer:  netip.AddrPortFrom(from.Addr().Unmap(), from.Port()),
			Local: netip.AddrPortFrom(to, s.addr.Port()),
		}
		s.mu.Lock()
		s.seen = append(s.seen, seen)
		s.mu.Unlock()
		// A lost answer is for the client to report.
		_, _, _ = conn.WriteMsgUDPAddrPort(seen.answer(string(data[:n])), reply, from)
	}
}

// wantPacketInfo asks for the destination of each datagram: ip(7), ipv6(7).
func wantPacketInfo(network, _ string, conn syscall.RawConn) error {
	var sockErr error
	err := conn.Control(func(fd uintptr) {
		if network == "udp4" {
			sockErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		} else {
			sockErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
		}
	})
	return errors.Join(err, sockErr)
}

// destination reads where a datagram was sent, and makes the control message
// that answers from there.
func destination(control []byte) (netip.Addr, []byte, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}, nil, fmt.Errorf("control message: %w", err)
	}
	for _, m := range messages {
		switch {
		case m.Header.Level == unix.IPPROTO_IP && m.Header.Type == unix.IP_PKTINFO && len(m.Data) >= unix.SizeofInet4Pktinfo:
			to := [4]byte(m.Data[8:12]) // ipi_addr of struct in_pktinfo
			return netip.AddrFrom4(to), unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: to}), nil
		case m.Header.Level == unix.IPPROTO_IPV6 && m.Header.Type == unix.IPV6_PKTINFO && len(m.Data) >= unix.SizeofInet6Pktinfo:
			to := [16]byte(m.Data[:16]) // an IPv4 address comes mapped, and goes so
			return netip.AddrFrom16(to).Unmap(), unix.PktInfo6(&unix.Inet6Pktinfo{Addr: to}), nil
		}
	}
	return netip.Addr{}, nil, errors.New("control message: no destination")
}
