// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// Options say what is followed.
type Options struct {
	// Config leads to the API server. It is copied; rate limits are set here.
	Config *rest.Config
	// Node is the name of the Node whose Pods are read.
	Node string
	// ProxyNames are the label values that delegate a Service (R1).
	ProxyNames []string
	// AgentNodes is what policy tells Nodes with an agent by (nat.Config); only the labels that it names are kept.
	AgentNodes labels.Selector
	Log        *slog.Logger
}

// Source follows an API server. Run feeds it; the other methods may be called at any time from any goroutine.
type Source struct {
	log      *slog.Logger
	clients  *clients
	gate     *gate
	kinds    []*kind
	changed  chan struct{}
	observer func(nat.Key)
	// shardObserver is the same for EgressShards.
	shardObserver func(nat.Key)

	mu       sync.Mutex
	inbox    nat.Objects
	unread   map[string]struct{} // kinds that were not delivered yet
	problems map[string]string   // by kind, or of one object
	observed map[nat.Key]status.Observed
	shards   map[nat.Key]status.ObservedShard
}

// Open prepares to follow an API server, which may be away. Nothing is asked before Run.
func Open(o Options) (*Source, error) {
	switch {
	case o.Config == nil:
		return nil, errors.New("cluster: no configuration of the API server")
	case o.Node == "":
		return nil, errors.New("cluster: no node name")
	case len(o.ProxyNames) == 0:
		return nil, errors.New("cluster: no proxy name")
	}
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		log:      log,
		changed:  make(chan struct{}, 1),
		inbox:    nat.NewObjects(),
		unread:   map[string]struct{}{},
		problems: map[string]string{},
		observed: map[nat.Key]status.Observed{},
		shards:   map[nat.Key]status.ObservedShard{},
	}
	s.gate = newGate(log, s.signal)
	var err error
	if s.clients, err = newClients(o.Config, s.gate, log); err != nil {
		return nil, fmt.Errorf("cluster: API server %s: %w", o.Config.Host, err)
	}
	if s.kinds, err = newKinds(s.clients, o); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	for _, k := range s.kinds {
		s.unread[k.name] = struct{}{}
	}
	return s, nil
}

// Client speaks to the same API server over the same connection.
func (s *Source) Client() typedcorev1.CoreV1Interface { return s.clients.core }

// Run follows the API server until ctx ends.
func (s *Source) Run(ctx context.Context) {
	ctx = withQuietLogger(ctx, s.log)
	var group sync.WaitGroup
	for _, k := range s.kinds {
		group.Go(func() { newFollower(s, k).run(ctx) })
	}
	group.Wait()
}

// Changed signals that Take, Problems or Connected have something new.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Take returns the objects that changed since the last Take as they are now, nil for those that are gone. It reports complete once every
// kind was listed to its end; objects and completeness are read together, so a complete batch never lacks part of a first list.
func (s *Source) Take() (batch nat.Objects, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch, s.inbox = s.inbox, nat.NewObjects()
	return batch, len(s.unread) == 0
}

// Problems returns what stands between this node and the objects.
func (s *Source) Problems() []string {
	s.mu.Lock()
	problems := slices.Collect(maps.Values(s.problems))
	s.mu.Unlock()
	if connected, why := s.Connected(); !connected {
		problems = append(problems, why)
	}
	slices.Sort(problems)
	return problems
}

// Connected reports whether the API server answers, and since when and why it does not. What was delivered stays in force meanwhile.
func (s *Source) Connected() (bool, string) { return s.gate.state() }

// Observed returns a Service as the API server last showed it; false when it does not show it (any more).
func (s *Source) Observed(key nat.Key) (status.Observed, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.observed[key]
	return o, ok
}

// OnObserved has f called after the conditions of a Service changed or another Service took its name. It must be set before Run, and f
// must not block.
func (s *Source) OnObserved(f func(nat.Key)) { s.observer = f }

// ShardClient speaks about EgressShards to the same API server over the same connection.
func (s *Source) ShardClient() dynamic.NamespaceableResourceInterface {
	return s.clients.dynamic.Resource(shardResource())
}

// ObservedShard returns an EgressShard as the API server last showed it; false when it does not show it (any more).
func (s *Source) ObservedShard(key nat.Key) (status.ObservedShard, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.shards[key]
	return o, ok
}

// OnShardObserved is OnObserved for the status of EgressShards.
func (s *Source) OnShardObserved(f func(nat.Key)) { s.shardObserver = f }

func (s *Source) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// setProblem records what is wrong with a kind; an empty text means nothing is.
func (s *Source) setProblem(kind, text string) {
	s.mu.Lock()
	news := s.problems[kind] != text
	if text == "" {
		delete(s.problems, kind)
	} else {
		s.problems[kind] = text
	}
	s.mu.Unlock()
	if news {
		s.signal()
	}
}
