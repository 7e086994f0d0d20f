// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// settleRounds is more than the number of links that any packet crosses in a
// topology, neighbour discovery for it included.
const settleRounds = 32

// settle returns when the packets that were under way have arrived where they
// were going. A veth hands packets over through the backlog of the CPU that
// sent them, first in, first out, and so does loopback: a packet that a CPU
// sends to itself arrives after all that its backlog held, which is one link
// further then. The namespace must have no filters. Packets that the kernel
// sends later by a timer, such as a second transmission, are not covered.
func settle(ns *NetNS) error {
	err := ns.Do(func() error {
		fd, self, err := loopbackSocket()
		if err != nil {
			return err
		}
		return errors.Join(echoOnEachCPU(fd, self), unix.Close(fd))
	})
	if err != nil {
		return fmt.Errorf("wait for packets under way: %w", err)
	}
	return nil
}

func loopbackSocket() (fd int, self unix.Sockaddr, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, nil, os.NewSyscallError("socket", err)
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	}
	if err == nil {
		self, err = unix.Getsockname(fd)
	}
	if err != nil {
		return -1, nil, errors.Join(err, unix.Close(fd))
	}
	return fd, self, nil
}

// echoOnEachCPU moves the calling thread from CPU to CPU and back.
func echoOnEachCPU(fd int, self unix.Sockaddr) (err error) {
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return os.NewSyscallError("sched_getaffinity", err)
	}
	defer func() { err = errors.Join(err, unix.SchedSetaffinity(0, &before)) }()
	for range settleRounds {
		for cpu, left := 0, before.Count(); left > 0; cpu++ {
			if !before.IsSet(cpu) {
				continue
			}
			left--
			var only unix.CPUSet
			only.Set(cpu)
			if err := unix.SchedSetaffinity(0, &only); err != nil {
				return os.NewSyscallError("sched_setaffinity", err)
			}
			if err := unix.Sendto(fd, []byte{1}, 0, self); err != nil {
				return os.NewSyscallError("sendto", err)
			}
			if _, err := unix.Read(fd, make([]byte, 1)); err != nil {
				return os.NewSyscallError("read", err)
			}
		}
	}
	return nil
}
