// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// threadCall is one function on a thread whose namespace it may change.
type threadCall struct {
	f        func() error
	done     chan struct{}
	err      error
	panicked any
	returned bool // false when f ended its goroutine, as FailNow does
}

// onOwnThread runs f on a thread whose namespace f may change, and ends as f
// ends: with its error, its panic or its FailNow.
func onOwnThread(f func() error) error {
	call := &threadCall{f: f, done: make(chan struct{})}
	go call.run()
	<-call.done
	switch {
	case call.panicked != nil:
		panic(call.panicked)
	case !call.returned:
		runtime.Goexit()
	}
	return call.err
}

func (c *threadCall) run() {
	runtime.LockOSThread()
	if unix.Gettid() == os.Getpid() {
		// Other processes take the main thread's namespace for that of the
		// whole process. While it waits here, the next is another thread.
		go c.run()
		<-c.done
		runtime.UnlockOSThread()
		return
	}
	defer close(c.done)
	origin, err := os.Open(threadNS)
	if err != nil {
		runtime.UnlockOSThread()
		c.err, c.returned = err, true
		return
	}
	defer c.leave(origin)
	defer func() {
		if c.panicked = recover(); c.panicked != nil {
			c.panicked = fmt.Sprintf("%v\n%s", c.panicked, debug.Stack())
		}
	}()
	c.err = c.f()
	c.returned = true
}

// leave gives the thread back to the runtime only in the namespace that it had
// before: otherwise the goroutine ends locked, and its thread ends with it.
func (c *threadCall) leave(origin *os.File) {
	err := unix.Setns(int(origin.Fd()), unix.CLONE_NEWNET)
	if err == nil {
		runtime.UnlockOSThread()
	}
	c.err = errors.Join(c.err, err, origin.Close())
}
