// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"testing"
	"time"
)

const pollInterval = time.Millisecond

// Eventually calls f until it returns nil, and fails the test with f's last
// error when that has not happened in time.
func Eventually(tb testing.TB, timeout time.Duration, what string, f func() error) {
	tb.Helper()
	if err := poll(timeout, f); err != nil {
		tb.Fatalf("%s: not within %v: %v", what, timeout, err)
	}
}

func poll(timeout time.Duration, f func() error) error {
	deadline := time.NewTimer(timeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-deadline.C:
			return err
		case <-tick.C:
		}
	}
}
