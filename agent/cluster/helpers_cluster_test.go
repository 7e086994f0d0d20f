// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/agent/cluster"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

const (
	nodeA  = "node-a"
	nodeB  = "node-b"
	tenant = "tenant-a"
	// soon bounds effects that pass through the real controllers.
	soon = 20 * time.Second

	roleFile   = "../../deploy/base/clusterrole.yaml"
	shardsFile = "../../deploy/crd/egressshard.yaml"
)

// agentConfig is a connection with the rights of the deployed agent, and no others.
func agentConfig(t *testing.T, c *kube.Cluster) *rest.Config {
	t.Helper()
	return c.Account(t, "natplane-system", "natplane", roleFile)
}

// view follows a source and holds what it delivered, as the loop would.
type view struct {
	source *cluster.Source

	mu       sync.Mutex
	objects  nat.Objects
	complete bool
	deletes  int
}

// follow runs a source for the test.
func follow(t *testing.T, config *rest.Config, node string, log *slog.Logger) *view {
	t.Helper()
	source, err := cluster.Open(cluster.Options{Config: config, Node: node, ProxyNames: nat.DefaultProxyNames(), Log: log})
	require.NoError(t, err)
	v := &view{source: source, objects: nat.NewObjects()}
	background(t, source.Run)
	background(t, v.take)
	return v
}

// background runs f until the test ends and waits for its end.
func background(t *testing.T, f func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

func (v *view) take(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-v.source.Changed():
		}
		batch, complete := v.source.Take()
		v.mu.Lock()
		v.complete = complete
		v.deletes += merge(v.objects.Services, batch.Services) + merge(v.objects.Slices, batch.Slices) +
			merge(v.objects.Pods, batch.Pods) + merge(v.objects.Nodes, batch.Nodes) + merge(v.objects.Shards, batch.Shards)
		v.mu.Unlock()
	}
}

func merge[K comparable, T any](into, batch map[K]*T) (deletes int) {
	for key, object := range batch {
		if object == nil {
			delete(into, key)
			deletes++
			continue
		}
		into[key] = object
	}
	return deletes
}

// see calls f with what was delivered.
func (v *view) see(f func(o nat.Objects, complete bool)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	f(v.objects, v.complete)
}

// eventually waits until what was delivered pleases f.
func (v *view) eventually(t *testing.T, limit time.Duration, what string, f func(o nat.Objects, complete bool) bool) {
	t.Helper()
	testenv.Eventually(t, limit, what, func() error {
		ok := false
		v.see(func(o nat.Objects, complete bool) { ok = f(o, complete) })
		if !ok {
			return errors.Join(errors.New("not yet"), errors.New(strings.Join(v.source.Problems(), "; ")))
		}
		return nil
	})
}

// endpoints returns the addresses of a Service over all its slices.
func endpoints(o nat.Objects, service string) map[string]bool {
	found := map[string]bool{}
	for _, s := range o.Slices {
		if s.Labels["kubernetes.io/service-name"] != service {
			continue
		}
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				found[a] = true
			}
		}
	}
	return found
}

// line is a connection to the server that a test can cut.
type line struct {
	mu    sync.Mutex
	down  bool
	conns map[net.Conn]struct{}
}

// cuttable returns a copy of the configuration that connects through the line.
func (l *line) cuttable(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Dial = l.dial
	return config
}

func (l *line) dial(ctx context.Context, network, address string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		return nil, errors.New("the line is cut")
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err == nil {
		l.mu.Lock()
		l.conns[conn] = struct{}{}
		l.mu.Unlock()
	}
	return conn, err
}

func newLine() *line { return &line{conns: map[net.Conn]struct{}{}} }

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for conn := range l.conns {
		_ = conn.Close() // that is the purpose
	}
	clear(l.conns)
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// tap records the requests that pass and may change their fate.
type tap struct {
	mu       sync.Mutex
	requests []string // verb and resource, as RBAC names them
	queries  []string // path?query
	// fate, when set, answers or delays a request; nil lets it pass.
	fate func(*http.Request) (*http.Response, error)
}

func (p *tap) tapped(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			p.mu.Lock()
			p.requests = append(p.requests, right(req))
			p.queries = append(p.queries, req.URL.Path+"?"+req.URL.RawQuery)
			fate := p.fate
			p.mu.Unlock()
			if fate != nil {
				if resp, err := fate(req); resp != nil || err != nil {
					return resp, err
				}
			}
			return next.RoundTrip(req)
		})
	})
	return config
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// count returns how many requests used a right.
func (p *tap) count(want string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.requests {
		if r == want {
			n++
		}
	}
	return n
}

// right names what RBAC asks for a request: "verb group/resource", or the path outside of resources.
func right(req *http.Request) string {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return "get " + req.URL.Path
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource := parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	verb := map[string]string{http.MethodPost: "create", http.MethodPatch: "patch", http.MethodPut: "update", http.MethodDelete: "delete"}[req.Method]
	switch {
	case verb != "":
	case req.URL.Query().Get("watch") != "":
		verb = "watch"
	case len(parts) == 1:
		verb = "list"
	default:
		verb = "get"
	}
	return verb + " " + group + "/" + resource
}

// holds fails the test when f fails once within the time.
func holds(t *testing.T, d time.Duration, f func() error) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		require.NoError(t, f())
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}
