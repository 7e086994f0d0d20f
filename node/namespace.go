// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// threadNS is the namespace of the calling thread; /proc/self would be that of the main thread.
const threadNS = "/proc/thread-self/ns/net"

// namespace is a network namespace that is not necessarily the one of the process. The zero value is that of the process and
// needs no privilege to be in.
type namespace struct{ file *os.File }

// openNamespace keeps a handle of its own, so that the caller may close fd.
func openNamespace(fd int) (namespace, error) {
	if fd <= 0 {
		return namespace{}, nil
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return namespace{}, fmt.Errorf("network namespace (fd %d): %w", fd, err)
	}
	return namespace{os.NewFile(uintptr(own), "netns")}, nil
}

func (ns namespace) close() error {
	if ns.file == nil {
		return nil
	}
	return ns.file.Close()
}

// do runs f inside the namespace, for what goes by the thread that asks, as /proc/sys/net does.
func (ns namespace) do(f func() error) error {
	if ns.file == nil {
		return f()
	}
	done := make(chan error, 1)
	go enter(int(ns.file.Fd()), f, done)
	return <-done
}

// enter runs f on a thread of its own. The thread goes back to the runtime only in the namespace that it came from: otherwise the
// goroutine ends while locked, and its thread ends with it.
func enter(fd int, f func() error, done chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Other processes take the namespace of the main thread for that of the process. While this goroutine holds it, the next
		// one is on another thread.
		inner := make(chan error, 1)
		go enter(fd, f, inner)
		done <- <-inner
		runtime.UnlockOSThread()
		return
	}
	origin, err := os.Open(threadNS)
	if err != nil {
		runtime.UnlockOSThread()
		done <- err
		return
	}
	err = unix.Setns(fd, unix.CLONE_NEWNET)
	if err != nil {
		err = fmt.Errorf("enter network namespace: %w", err)
	} else {
		err = f()
	}
	back := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET)
	if back == nil {
		runtime.UnlockOSThread()
	}
	done <- errors.Join(err, back, origin.Close())
}
