// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

var errRefused = errors.New("connection refused")

// faulty is a server that can be away.
type faulty struct {
	away     atomic.Bool
	attempts atomic.Int64
	// blips is how many requests still fail although the server is there.
	blips atomic.Int64
}

func (f *faulty) RoundTrip(req *http.Request) (*http.Response, error) {
	f.attempts.Add(1)
	if f.away.Load() || f.blips.Add(-1) >= 0 {
		return nil, errRefused
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: req}, nil
}

func newTestGate(server *faulty) (*gate, *bytes.Buffer, *atomic.Int64) {
	var log bytes.Buffer
	var signals atomic.Int64
	g := newGate(slog.New(slog.NewTextHandler(&log, nil)), func() { signals.Add(1) })
	g.wrap(server)
	return g, &log, &signals
}

func request(ctx context.Context, t *testing.T, method string) *http.Request {
	req, err := http.NewRequestWithContext(ctx, method, "https://server/", nil)
	require.NoError(t, err)
	return req
}

func TestGateTriesOncePerSecondForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &faulty{}
		g, log, signals := newTestGate(server)
		server.away.Store(true)
		const kinds = 5
		answered := make(chan error, kinds)
		for range kinds {
			go func() {
				_, err := g.RoundTrip(request(t.Context(), t, http.MethodGet))
				answered <- err
			}()
		}
		synctest.Wait()
		open, why := g.state()
		require.False(t, open)
		require.Contains(t, why, "connection refused")

		before := server.attempts.Load()
		<-time.After(60 * time.Second) // the bubble's clock, not the wall's
		tries := server.attempts.Load() - before
		require.GreaterOrEqual(t, tries, int64(60))
		require.LessOrEqual(t, tries, int64(120))

		server.away.Store(false)
		back := time.Now()
		for range kinds {
			require.NoError(t, <-answered)
		}
		require.LessOrEqual(t, time.Since(back), time.Second)
		open, _ = g.state()
		require.True(t, open)
		require.Equal(t, 2, strings.Count(log.String(), "\n"), "one line for its beginning, one for its end:\n%s", log)
		require.Equal(t, int64(2), signals.Load())
	})
}

func TestGatePassesOverABrokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &faulty{}
		server.blips.Store(1)
		g, log, _ := newTestGate(server)
		_, err := g.RoundTrip(request(t.Context(), t, http.MethodGet))
		require.NoError(t, err)
		require.Equal(t, int64(2), server.attempts.Load())
		require.Empty(t, log.String())
	})
}

func TestGateLeavesFailedWritesToTheirSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &faulty{}
		server.away.Store(true)
		g, _, _ := newTestGate(server)
		_, err := g.RoundTrip(request(t.Context(), t, http.MethodPatch))
		require.ErrorIs(t, err, errRefused)
		require.Equal(t, int64(1), server.attempts.Load(), "a write must not be sent twice")
	})
}

func TestGateLetsGoOfThoseWhoGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &faulty{}
		server.away.Store(true)
		g, _, _ := newTestGate(server)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := g.RoundTrip(request(ctx, t, http.MethodGet))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		// Its turn is free for the next.
		server.away.Store(false)
		_, err = g.RoundTrip(request(t.Context(), t, http.MethodGet))
		require.NoError(t, err)
	})
}

func TestStartingServerIsAskedAgainSoon(t *testing.T) {
	resp := &http.Response{StatusCode: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"5"}}}
	hasten(resp)
	require.Equal(t, "1", resp.Header.Get("Retry-After"))
	overloaded := &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"5"}}}
	hasten(overloaded)
	require.Equal(t, "5", overloaded.Header.Get("Retry-After"))
}
