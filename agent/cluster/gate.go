// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// Between two attempts to reach an API server that is away lie 0.5 to 1 s, per node and not per kind. client-go's own delay grows to
// 60 s, and a node has to be up to date within 2 s of the server's return.
const (
	probeDelay  = 500 * time.Millisecond
	probeJitter = 500 * time.Millisecond
)

// gate stands in front of the connection to the API server. It closes when the server cannot be reached; then requests wait behind it,
// and one of them at a time, now and then, tries. It cares about the connection only: any answer at all opens it.
type gate struct {
	next   http.RoundTripper
	log    *slog.Logger
	notify func()
	// turn is held by the one request that tries.
	turn chan struct{}

	mu sync.Mutex
	// opened is nil while the gate is open; otherwise it is closed when the gate opens.
	opened chan struct{}
	since  time.Time
	cause  error
}

func newGate(log *slog.Logger, notify func()) *gate {
	return &gate{log: log, notify: notify, turn: make(chan struct{}, 1)}
}

// wrap is a transport.WrapperFunc.
func (g *gate) wrap(next http.RoundTripper) http.RoundTripper {
	g.next = next
	return g
}

// RoundTrip sends a request when the gate is open. Reads (which all our GETs are, without a body) are repeated until they get an answer or
// their context ends; writes fail and their sender decides.
func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	for attempt := 0; ; attempt++ {
		trying, err := g.admit(ctx)
		if err != nil {
			return nil, err
		}
		resp, err := g.next.RoundTrip(req)
		read := req.Method == http.MethodGet
		switch {
		case err == nil:
			g.open()
			hasten(resp)
		case ctx.Err() != nil:
			// The sender gave up; that says nothing about the server.
		case !trying && read && attempt == 0:
			// A connection that broke while idle is no outage: try a new one first.
		case read:
			g.close(err)
		}
		if trying {
			<-g.turn
		}
		if err == nil || !read || ctx.Err() != nil {
			return resp, err
		}
	}
}

// admit waits until a request may be sent, and tells whether it is the one that tries.
func (g *gate) admit(ctx context.Context) (trying bool, err error) {
	for {
		g.mu.Lock()
		opened := g.opened
		g.mu.Unlock()
		if opened == nil {
			return false, nil
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("the API server is away: %w", ctx.Err())
		case <-opened:
			continue
		case g.turn <- struct{}{}:
		}
		delay := time.NewTimer(probeDelay + rand.N(probeJitter))
		select {
		case <-delay.C:
			return true, nil
		case <-ctx.Done():
		case <-opened:
		}
		delay.Stop()
		<-g.turn
	}
}

func (g *gate) close(err error) {
	g.mu.Lock()
	g.cause = err
	first := g.opened == nil
	if first {
		g.opened, g.since = make(chan struct{}), time.Now()
	}
	g.mu.Unlock()
	if first {
		g.log.Warn("the API server is away; what is in the kernel goes on", "error", err)
		g.notify()
	}
}

func (g *gate) open() {
	g.mu.Lock()
	opened, since := g.opened, g.since
	g.opened, g.cause = nil, nil
	g.mu.Unlock()
	if opened == nil {
		return
	}
	close(opened)
	g.log.Info("the API server is back", "away", time.Since(since).Round(time.Millisecond))
	g.notify()
}

// hasten shortens the 5 s that a starting server asks for before it knows which paths it serves (503, Retry-After): client-go would obey
// within the request, and a node has to be up to date within 2 s. An overloaded server (429) gets the time that it asks for.
func hasten(resp *http.Response) {
	if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "" {
		resp.Header.Set("Retry-After", "1")
	}
}

// state tells whether the gate is open, and if not since when and why. The text is the same throughout an outage of one cause.
func (g *gate) state() (open bool, why string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		return true, ""
	}
	return false, fmt.Sprintf("the API server has been away since %s: %v; the last known objects stay in force",
		g.since.UTC().Format(time.RFC3339), g.cause)
}
