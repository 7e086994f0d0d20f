// SPDX-License-Identifier: Apache-2.0

package agent

import "time"

// Retry delays of the loop: short enough that a passing fault is not noticed, long enough that a lasting one costs nothing.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = 10 * time.Second
	// ownerRetry is how often an agent that waits for another one's exit looks again; R17 grants a second in all.
	ownerRetry = 200 * time.Millisecond
)

// backoff doubles from firstRetry to lastRetry.
type backoff struct{ next time.Duration }

// lasting reports whether a fault outlived several tries.
func (b *backoff) lasting() bool { return b.next >= 8*firstRetry }

func (b *backoff) delay() time.Duration {
	d := max(b.next, firstRetry)
	b.next = min(2*d, lastRetry)
	return d
}

func (b *backoff) reset() { b.next = 0 }
