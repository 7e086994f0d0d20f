// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// checkAddress finds a slip in --http-address before anything is done; whether it can be listened on shows later.
func checkAddress(address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usagef("--http-address %q: want HOST:PORT", address)
	}
	return nil
}

// listen opens the HTTP address even while no interface has it (man 7 ip, IP_FREEBIND): translation must not depend on a loopback
// interface that is down, as it is in a fresh network namespace.
func listen(ctx context.Context, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(network, _ string, raw syscall.RawConn) error {
		level, option := unix.IPPROTO_IP, unix.IP_FREEBIND
		if strings.HasSuffix(network, "6") {
			level, option = unix.IPPROTO_IPV6, unix.IPV6_FREEBIND
		}
		var optionErr error
		err := raw.Control(func(fd uintptr) { optionErr = unix.SetsockoptInt(int(fd), level, option, 1) })
		return errors.Join(err, optionErr)
	}}
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--http-address %s: %w", address, err)
	}
	return listener, nil
}
