// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/natplane/natplane/nat"
)

const shardAPIVersion = "network.datumapis.com/v1alpha1"

// Shards knows the EgressShards as the API server last showed them; false for one that it does not show.
type Shards interface {
	ObservedShard(key nat.Key) (ObservedShard, bool)
}

// ShardOptions are what a ShardReporter is made of.
type ShardOptions struct {
	// Client speaks about EgressShards.
	Client dynamic.NamespaceableResourceInterface
	Shards Shards
	// Events makes Events about them.
	Events typedcorev1.EventsGetter
	// Node is the name of this node; the status of a shard is written by the node that it names.
	Node string
	Log  *slog.Logger
}

// ShardReporter writes to EgressShards what the kernel is programmed with. Its methods may be called from any goroutine.
type ShardReporter struct {
	o     ShardOptions
	log   *slog.Logger
	queue queue

	mu    sync.Mutex
	tasks map[nat.Key]*shardTask
	// failing is as in Reporter.
	failing bool
}

type shardTask struct {
	verdict nat.Verdict
	// have is the latest state that is known, seen or written.
	have  ObservedShard
	wrote time.Time
}

// NewShardReporter returns a ShardReporter that writes once Run is called.
func NewShardReporter(o ShardOptions) *ShardReporter {
	r := &ShardReporter{
		o: o, log: o.Log, tasks: map[nat.Key]*shardTask{},
		queue: newQueue(),
	}
	if r.log == nil {
		r.log = slog.New(slog.DiscardHandler)
	}
	return r
}

// Report notes new verdicts on shards of this node; it passes over those on other objects. It is called after the kernel took what they say.
func (r *ShardReporter) Report(changed []nat.Verdict, _ []nat.Key) {
	for _, v := range changed {
		if v.Kind != nat.KindEgressShard || v.Reporter != r.o.Node {
			continue
		}
		r.mu.Lock()
		t := r.tasks[v.Key()]
		if t == nil {
			t = &shardTask{}
			r.tasks[v.Key()] = t
		}
		t.verdict = v
		r.mu.Unlock()
		r.queue.Add(v.Key())
	}
}

// Observe tells that the status of a shard changed. What is not as it should be is put right after a while.
func (r *ShardReporter) Observe(key nat.Key) {
	r.mu.Lock()
	_, ours := r.tasks[key]
	r.mu.Unlock()
	if ours {
		r.queue.AddAfter(key, repairDelay)
	}
}

// Run writes until ctx ends. A node has one shard, so one at a time will do.
func (r *ShardReporter) Run(ctx context.Context) {
	r.queue.run(ctx, 1, r.settle, r.tell)
}

// tell logs the first of a series of failures, and its end.
func (r *ShardReporter) tell(err error) {
	switch {
	case err != nil && !r.failing:
		r.failing = true
		r.log.Warn("status of EgressShards cannot be written", "error", err)
	case err == nil && r.failing:
		r.failing = false
		r.log.Info("status of EgressShards is written again")
	}
}

// settle makes the shard say what it should. It returns after which delay to look again, or 0.
func (r *ShardReporter) settle(ctx context.Context, key nat.Key) (time.Duration, error) {
	t, ok := r.task(key)
	if !ok {
		return 0, nil
	}
	want := shardStatus(t.verdict, t.have.Conditions, time.Now())
	if sameFields(want, t.have.Status) && sameConditions(want.Conditions, t.have.Conditions) {
		return 0, nil
	}
	if early := spacing - time.Since(t.wrote); early > 0 {
		return early, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	after, err := r.apply(ctx, key, t.have, want)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return repairDelay, nil // gone, or another shard has its name: word of that is on its way
	case err != nil:
		return 0, fmt.Errorf("status of EgressShard %s: %w", key, err)
	}
	r.mu.Lock()
	if kept := r.tasks[key]; kept != nil {
		kept.have, kept.wrote = after, time.Now()
	}
	r.mu.Unlock()
	if err := r.announce(ctx, key, t.have, want.Conditions); err != nil {
		return 0, err // there is nothing to write when it is tried again
	}
	if !sameFields(want, after.Status) {
		return spacing, nil // something was written as empty that now has to go
	}
	return 0, nil
}

func (r *ShardReporter) announce(ctx context.Context, key nat.Key, before ObservedShard, now []metav1.Condition) error {
	about := corev1.ObjectReference{
		APIVersion: shardAPIVersion, Kind: nat.KindEgressShard, Namespace: key.Namespace, Name: key.Name, UID: before.UID,
	}
	return announcer{r.o.Events, r.o.Node}.announce(ctx, about, before.Conditions, now)
}

// task returns what is to be said about a shard, with the latest state that is known. A shard that is gone, or names another node by now, is
// forgotten: that node speaks for it.
func (r *ShardReporter) task(key nat.Key) (shardTask, bool) {
	seen, shown := r.o.Shards.ObservedShard(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[key]
	if t == nil {
		return shardTask{}, false
	}
	if !shown || seen.Node != r.o.Node {
		delete(r.tasks, key)
		return shardTask{}, false
	}
	if t.have.UID == "" || later(seen.Observed, t.have.Observed).ResourceVersion == seen.ResourceVersion {
		t.have = seen
	}
	return *t, true
}

// apply writes the status. The UID guards against another shard of the same name.
func (r *ShardReporter) apply(ctx context.Context, key nat.Key, have ObservedShard, want nat.EgressShardStatus) (ObservedShard, error) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": shardAPIVersion,
		"kind":       nat.KindEgressShard,
		"metadata":   map[string]any{"name": key.Name, "namespace": key.Namespace, "uid": string(have.UID)},
		"status":     fields(want, have.Status),
	}}
	options := metav1.ApplyOptions{FieldManager: FieldManager, Force: true}
	written, err := r.o.Client.Namespace(key.Namespace).ApplyStatus(ctx, key.Name, object, options)
	if err != nil {
		return ObservedShard{}, err
	}
	after := &nat.EgressShard{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(written.Object, after); err != nil {
		return ObservedShard{}, err
	}
	r.log.Debug("status written", "shard", key.String(), "ipv4", want.ShardAddressIPv4, "ipv6", want.ShardAddressIPv6)
	return ObserveShard(after), nil
}
