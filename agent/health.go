// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"sync"
	"time"
)

// stuckAfter is how old an unapplied change may grow before the agent calls itself unhealthy and a restart is worth a try. A change
// takes milliseconds; an outage of the API server is no unapplied change.
const stuckAfter = 2 * time.Minute

// Health is what the probes and `natplane status` say.
type Health struct {
	// Ready is true once every kind of object was delivered and the table was programmed, and until programming fails.
	Ready bool `json:"ready"`
	// Healthy is false when a change could not be applied for minutes.
	Healthy bool `json:"healthy"`
	// Synced is true once the source delivered every kind of object.
	Synced bool `json:"synced"`
	// Programmed is true while the kernel holds what the objects ask for.
	Programmed bool `json:"programmed"`
	// Waiting says what the agent waits for, if anything.
	Waiting string `json:"waiting,omitempty"`
	// Disconnected says why the source cannot be followed now, if so; what it delivered before stays in force.
	Disconnected string `json:"disconnected,omitempty"`
	// LastError is the reason why Programmed is false.
	LastError string `json:"lastError,omitempty"`
	// Predecessor is true while cozy-proxy's table is on the node and natplane was told to leave it.
	Predecessor bool `json:"predecessor,omitempty"`
	// NodeMissing says so when there are Node objects, but none of this node.
	NodeMissing string `json:"nodeMissing,omitempty"`
	// Drift counts the changes by others that were noticed in the table and repaired.
	Drift int `json:"drift"`
}

// health is written by the loop and read by the probes.
type health struct {
	mu sync.Mutex
	h  Health
	// queued is when the oldest change came that is not applied yet; zero when all are.
	queued time.Time
}

func (s *health) update(f func(*Health)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.h)
}

// change notes that there is something to apply; the oldest time counts.
func (s *health) change(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.queued.IsZero() {
		s.queued = now
	}
}

func (s *health) applied() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queued = time.Time{}
	s.h.Programmed, s.h.LastError, s.h.Waiting = true, "", ""
}

func (s *health) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.h.Programmed, s.h.LastError = false, err.Error()
}

func (s *health) get(now time.Time) Health {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.h
	h.Healthy = s.queued.IsZero() || now.Sub(s.queued) < stuckAfter || h.Waiting != ""
	h.Ready = h.Synced && h.Programmed
	return h
}

// explain says in a line why an agent is not ready.
func (h Health) explain() string {
	switch {
	case h.Ready:
		return "ok"
	case h.Waiting != "":
		return h.Waiting
	case h.Disconnected != "":
		return h.Disconnected
	case h.LastError != "":
		return "programming failed: " + h.LastError
	case !h.Synced:
		return "waiting for every kind of object to be read once"
	}
	return fmt.Sprintf("not programmed yet (synced: %t)", h.Synced)
}
