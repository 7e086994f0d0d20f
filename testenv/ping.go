// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Ping sends one echo request from a namespace and returns where the reply came
// from, which is an ErrWrongSource when it is not dst. The zero src lets the
// kernel choose.
func Ping(ns *NetNS, src, dst netip.Addr, timeout time.Duration) (netip.Addr, error) {
	return Echo{Src: src, Dst: dst, ID: uint16(rand.Uint32()), Seq: 1}.Ping(ns, timeout)
}

// Ping is the function Ping with a chosen identifier, sequence and payload. Two
// at a time from one namespace must differ in ID or Seq.
func (e Echo) Ping(ns *NetNS, timeout time.Duration) (netip.Addr, error) {
	from, err := e.ping(ns, timeout)
	if err == nil && from != e.Dst {
		err = fmt.Errorf("%w: %s", ErrWrongSource, from)
	}
	if err != nil {
		return from, fmt.Errorf("ping %s from namespace %s: %w", e.Dst, ns.name, err)
	}
	return from, nil
}

func (e Echo) ping(ns *NetNS, timeout time.Duration) (from netip.Addr, err error) {
	f := FamilyOf(e.Dst)
	proto := unix.IPPROTO_ICMP
	if f == IPv6 {
		proto = unix.IPPROTO_ICMPV6
	}
	fd, err := rawSocket(ns, f, proto)
	if err != nil {
		return from, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	if e.Src.IsValid() {
		if err := unix.Bind(fd, sockaddr(e.Src)); err != nil {
			return from, os.NewSyscallError("bind", err)
		}
	}
	// The kernel completes the checksum in ICMPv6 only: raw(7), RFC 3542 3.1.
	packet, err := ParsePacket(Echo{Src: e.Dst, Dst: e.Dst, ID: e.ID, Seq: e.Seq, Payload: e.Payload}.Packet())
	if err != nil {
		return from, err
	}
	if err := unix.Sendto(fd, packet.Transport, 0, sockaddr(e.Dst)); err != nil {
		return from, os.NewSyscallError("sendto", err)
	}
	return e.awaitReply(fd, packet.Transport[4:8], time.Now().Add(timeout))
}

func (e Echo) awaitReply(fd int, ids []byte, deadline time.Time) (netip.Addr, error) {
	_, reply := echoTypes(FamilyOf(e.Dst))
	data := make([]byte, maxPacket)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return netip.Addr{}, os.ErrDeadlineExceeded
		}
		// A zero timeout would mean to wait for ever.
		wait := unix.NsecToTimeval(max(left, time.Millisecond).Nanoseconds())
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
			return netip.Addr{}, os.NewSyscallError("SO_RCVTIMEO", err)
		}
		n, from, err := unix.Recvfrom(fd, data, 0)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return netip.Addr{}, os.NewSyscallError("recvfrom", err)
		}
		message := data[:n]
		if e.Dst.Is4() && n >= ip4HeaderLen { // IPv4 raw sockets deliver the header
			message = message[min(n, int(message[0]&0xf)*4):]
		}
		if len(message) >= icmpHeaderLen && message[0] == reply && bytes.Equal(message[4:8], ids) {
			return sockaddrIP(from), nil
		}
	}
}

func sockaddr(addr netip.Addr) unix.Sockaddr {
	if addr.Is4() {
		return &unix.SockaddrInet4{Addr: addr.As4()}
	}
	return &unix.SockaddrInet6{Addr: addr.As16()}
}

func sockaddrIP(sa unix.Sockaddr) netip.Addr {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}
