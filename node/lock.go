// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another agent works on this node.
var ErrLocked = errors.New("another agent holds the lock of this node")

// lockName is in the abstract namespace of UNIX sockets, which every network namespace has of its own (man 7 unix, man 7
// network_namespaces): the lock is the node's, needs no file system, and ends with the process that holds it.
const lockName = "@natplane-agent"

// Lock makes this process the one agent of the node until the lock is closed or the process ends.
func (n *Node) Lock() (io.Closer, error) {
	var lock io.Closer
	err := n.ns.do(func() (err error) {
		lock, err = net.ListenUnix("unix", &net.UnixAddr{Name: lockName, Net: "unix"})
		return err
	})
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return nil, ErrLocked
	case err != nil:
		return nil, fmt.Errorf("node lock: %w", err)
	}
	return lock, nil
}
