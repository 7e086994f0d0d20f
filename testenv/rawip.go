// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// SendIP sends a packet from a namespace as it is, whatever its source. In
// IPv4 the kernel fills in the header checksum, and the identification if zero.
func SendIP(ns *NetNS, packet []byte) error {
	p, err := ParsePacket(packet)
	if err != nil {
		return fmt.Errorf("send from namespace %s: %w", ns.name, err)
	}
	fd, err := rawSocket(ns, FamilyOf(p.Dst), unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	err = unix.Sendto(fd, packet, 0, sockaddr(p.Dst))
	if err != nil {
		err = fmt.Errorf("send %s from namespace %s: %w", p, ns.name, err)
	}
	return errors.Join(err, unix.Close(fd))
}

// Absorb takes the packets of a protocol in a namespace until the test ends,
// so that the kernel does not answer "protocol unreachable". A capture shows
// what arrives.
func Absorb(tb testing.TB, ns *NetNS, proto uint8) {
	tb.Helper()
	for _, f := range Families() {
		fd, err := rawSocket(ns, f, int(proto))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := unix.Close(fd); err != nil {
				tb.Errorf("absorb protocol %d: %v", proto, err)
			}
		})
	}
}

func rawSocket(ns *NetNS, f Family, proto int) (fd int, err error) {
	domain := unix.AF_INET
	if f == IPv6 {
		domain = unix.AF_INET6
	}
	err = ns.Do(func() error {
		fd, err = unix.Socket(domain, unix.SOCK_RAW|unix.SOCK_CLOEXEC, proto)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		return -1, fmt.Errorf("raw %s socket of protocol %d in namespace %s: %w", f, proto, ns.name, err)
	}
	return fd, nil
}
