// SPDX-License-Identifier: Apache-2.0

// Package lifeline ends a helper process together with the process that
// started it, however that one ended. It does NOT watch children.
package lifeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// Causes of the end of a context from Watch.
var (
	ErrInputClosed = errors.New("stdin closed")
	ErrParentGone  = errors.New("parent process gone")
)

// Watch returns a context that ends when input reaches its end or when the
// parent process is gone. Only a pipe or a socket counts as input: /dev/null is
// always at its end, and reading a terminal stops a background process.
func Watch(ctx context.Context, input *os.File) (context.Context, error) {
	info, err := input.Stat()
	if err != nil {
		return nil, fmt.Errorf("stdin: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if err := watchParent(os.Getppid(), cancel); err != nil {
		cancel(err)
		return nil, err
	}
	if info.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		go func() {
			// A read error is the end of the pipe as well.
			_, _ = io.Copy(io.Discard, input)
			cancel(ErrInputClosed)
		}()
	}
	return ctx, nil
}

// watchParent calls cancel when the process has ended. Process 0 is a parent
// in another PID namespace, which cannot be watched.
//
// A parent-death signal (PR_SET_PDEATHSIG) would follow the thread that
// started us, and the Go runtime ends threads at will; a pidfd follows the
// process. Kernel >= 5.3.
func watchParent(pid int, cancel context.CancelCauseFunc) error {
	if pid == 0 {
		return nil
	}
	pidfd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		cancel(ErrParentGone)
		return nil
	}
	if err != nil {
		return fmt.Errorf("watch parent process %d: %w", pid, err)
	}
	go func() {
		cancel(waitProcess(pidfd))
	}()
	return nil
}

// waitProcess returns when the process behind a pidfd has ended.
func waitProcess(pidfd int) error {
	defer unix.Close(pidfd)
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, -1)
		switch {
		case err == nil:
			return ErrParentGone
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("watch parent process: %w", err)
		}
	}
}
