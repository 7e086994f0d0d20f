// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// lowestPort starts the range that free ports are taken from.
	lowestPort = 10000
	// defaultEphemeral is the kernel's first ephemeral port when it cannot be
	// read (ip_local_port_range in man 7 ip).
	defaultEphemeral = 32768
	ephemeralRange   = "/proc/sys/net/ipv4/ip_local_port_range"

	portAttempts = 200
	dialLimit    = 2 * time.Second
)

// Listen opens a TCP port on 127.0.0.1 and remembers it. Port 0 stands for
// the remembered one, or for a free one in a new directory.
func (d *Dir) Listen(port int) (net.Listener, error) {
	if port == 0 {
		saved, err := d.savedPort()
		if err != nil {
			return nil, err
		}
		port = saved
	}
	var (
		l   net.Listener
		err error
	)
	if port == 0 {
		l, err = listenFree(firstEphemeral())
	} else {
		l, err = listenLoopback(port)
	}
	if err != nil {
		return nil, err
	}
	if err := reachable(l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	port = l.Addr().(*net.TCPAddr).Port
	if err := writeFile(d.file(portFile), []byte(strconv.Itoa(port)+"\n")); err != nil {
		return nil, errors.Join(fmt.Errorf("remember port %d: %w", port, err), l.Close())
	}
	return l, nil
}

func (d *Dir) savedPort() (int, error) {
	content, err := os.ReadFile(d.file(portFile))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("remembered port: %w", err)
	}
	port, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return 0, fmt.Errorf("remembered port: %w", err)
	}
	return port, nil
}

// listenFree takes a port below the ephemeral ones. An ephemeral port could
// go to any outgoing connection while the server is down between two starts,
// even to a client that dials the dead server (a TCP self-connect).
func listenFree(ephemeral int) (net.Listener, error) {
	if ephemeral <= lowestPort {
		return listenLoopback(0)
	}
	for range portAttempts {
		l, err := listenLoopback(lowestPort + rand.IntN(ephemeral-lowestPort))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, fmt.Errorf("no free port in %d attempts: %w", portAttempts, syscall.EADDRINUSE)
}

func listenLoopback(port int) (net.Listener, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("serving port: %w", err)
	}
	return l, nil
}

// reachable tells a fresh network namespace apart, where a port can be opened
// although its lo interface is down and nobody can connect.
func reachable(l net.Listener) error {
	conn, err := net.DialTimeout("tcp4", l.Addr().String(), dialLimit)
	if err != nil {
		return fmt.Errorf("serving port cannot be reached, is interface lo up? %w", err)
	}
	return conn.Close()
}

func firstEphemeral() int {
	content, err := os.ReadFile(ephemeralRange)
	if err != nil {
		return defaultEphemeral
	}
	var first, last int
	if _, err := fmt.Sscan(string(content), &first, &last); err != nil {
		return defaultEphemeral
	}
	return first
}
