// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
)

// Unreachable fails the test unless f fails the way that a dropped or refused
// packet makes it fail. Another error, such as a local port in use, shows
// nothing about the network and fails the test too.
func Unreachable(tb testing.TB, what string, f func() error) {
	tb.Helper()
	switch err := f(); {
	case err == nil:
		tb.Fatalf("%s: reachable", what)
	case !IsUnreachable(err):
		tb.Fatalf("%s: neither reachable nor unreachable: %v", what, err)
	}
}

// IsUnreachable tells whether an error means that no answer came: a timeout, a
// refusal, a reset, an ICMP error, or a drop in the sender's own output hook.
func IsUnreachable(err error) bool {
	var timeout interface{ Timeout() bool }
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &timeout) && timeout.Timeout() {
		return true
	}
	return slices.ContainsFunc([]error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH,
		syscall.EACCES, syscall.EPERM,
	}, func(target error) bool { return errors.Is(err, target) })
}
