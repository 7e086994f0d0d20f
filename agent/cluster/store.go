// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// store takes what a Reflector brings and puts it into the inbox. It remembers which objects there are, by name and version, so that a new
// list tells what is gone and what did not change.
type store struct {
	source *Source
	kind   *kind
	known  map[nat.Key]entry
}

// entry is an object that the server showed.
type entry struct {
	version string
	// object is kept for kinds that change more often than they mean something (kind.same).
	object metav1.Object
	// readable is the shard of which a version that could be read was delivered.
	readable types.UID
}

var _ cache.TransformingStore = (*store)(nil)

func newStore(s *Source, k *kind) *store {
	return &store{source: s, kind: k, known: map[nat.Key]entry{}}
}

// Transformer has the Reflector strip objects of a first list while they stream in.
func (s *store) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return s.kind.strip(object) }
}

// Add takes a new object.
func (s *store) Add(object any) error { return s.Update(object) }

// Update takes an object that changed.
func (s *store) Update(object any) error {
	stripped, err := s.kind.strip(object)
	if err != nil {
		return err
	}
	var d delivery
	s.source.mu.Lock()
	s.put(stripped, &d)
	s.source.mu.Unlock()
	s.tell(d)
	return nil
}

// Delete takes the end of an object. Only its name counts.
func (s *store) Delete(object any) error {
	named, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("%s: deleted %T has no name", s.kind.name, object)
	}
	var d delivery
	s.source.mu.Lock()
	s.drop(keyOf(named), &d)
	s.source.mu.Unlock()
	s.tell(d)
	return nil
}

// Replace takes a complete list: what it lacks is gone, with or without an event.
func (s *store) Replace(list []any, _ string) error {
	stripped := make([]metav1.Object, 0, len(list))
	for _, object := range list {
		o, err := s.kind.strip(object)
		if err != nil {
			return err
		}
		stripped = append(stripped, o)
	}
	var d delivery
	s.source.mu.Lock()
	listed := make(map[nat.Key]struct{}, len(stripped))
	for _, o := range stripped {
		key := keyOf(o)
		listed[key] = struct{}{}
		if was, had := s.known[key]; !had || was.version != o.GetResourceVersion() {
			s.put(o, &d)
		}
	}
	for key := range s.known {
		if _, still := listed[key]; !still {
			s.drop(key, &d)
		}
	}
	if _, first := s.source.unread[s.kind.name]; first {
		delete(s.source.unread, s.kind.name)
		d.news = true
	}
	s.source.mu.Unlock()
	s.tell(d)
	return nil
}

// Resync is never asked for: no resync period is set.
func (s *store) Resync() error { return nil }

// delivery is what a step brought: anything at all, and the Services and shards whose conditions are news.
type delivery struct {
	news       bool
	conditions []nat.Key
	shards     []nat.Key
	// unreadable says which shards became so and why, readable names those that no longer are.
	unreadable []string
	readable   []nat.Key
}

// put notes an object; the source is locked.
func (s *store) put(object metav1.Object, d *delivery) {
	key := keyOf(object)
	was := s.known[key]
	now := entry{version: object.GetResourceVersion(), readable: was.readable}
	if shard, ok := object.(*nat.EgressShard); ok {
		now.readable = shard.UID
	}
	if s.kind.same != nil {
		now.object = object
	}
	s.known[key] = now
	if was.object != nil && s.kind.same(was.object, object) {
		return
	}
	d.news = true
	if shard := shardOf(object); shard != nil {
		if !s.judge(key, object, was, d) {
			return
		}
		before, had := s.source.shards[key]
		after := status.ObserveShard(shard)
		s.source.shards[key] = after
		if !had || !before.SameAs(after) {
			d.shards = append(d.shards, key)
		}
	}
	s.kind.put(s.source.inbox, key, object)
	if s.kind.observe == nil {
		return
	}
	before, had := s.source.observed[key]
	after := s.kind.observe(object)
	s.source.observed[key] = after
	if !had || !before.SameAs(after) {
		d.conditions = append(d.conditions, key)
	}
}

// judge notes whether a shard can be read, and reports whether it is to be delivered: while it cannot, the last version of it that could stays
// in force. The source is locked.
func (s *store) judge(key nat.Key, object metav1.Object, was entry, d *delivery) (deliver bool) {
	problem, had := s.source.problems[problemOf(key)]
	bad, unreadable := object.(*unreadableShard)
	if !unreadable {
		if had {
			delete(s.source.problems, problemOf(key))
			d.readable = append(d.readable, key)
		}
		return true
	}
	stays := was.readable != "" && was.readable == bad.UID
	text := fmt.Sprintf("EgressShard %s cannot be read and is not in force: %s", key, bad.why)
	if stays {
		text = fmt.Sprintf("EgressShard %s cannot be read, its last version that could be stays in force: %s", key, bad.why)
	}
	if text != problem {
		s.source.problems[problemOf(key)] = text
		d.unreadable = append(d.unreadable, text)
	}
	return !stays
}

// problemOf is where the problem of one shard is kept among those of kinds.
func problemOf(shard nat.Key) string { return shards + " " + shard.String() }

// drop notes the end of an object; the source is locked.
func (s *store) drop(key nat.Key, d *delivery) {
	if _, had := s.known[key]; !had {
		return
	}
	d.news = true
	delete(s.known, key)
	s.kind.put(s.source.inbox, key, nil)
	if s.kind.observe != nil {
		delete(s.source.observed, key)
	}
	if s.kind.name == shards {
		delete(s.source.shards, key)
		delete(s.source.problems, problemOf(key))
	}
}

func (s *store) tell(d delivery) {
	if d.news {
		s.source.signal()
	}
	for _, problem := range d.unreadable {
		s.source.log.Warn("a shard cannot be read", "problem", problem)
	}
	for _, key := range d.readable {
		s.source.log.Info("a shard can be read again", "shard", key.String())
	}
	tellEach(s.source.observer, d.conditions)
	tellEach(s.source.shardObserver, d.shards)
}

func tellEach(observer func(nat.Key), keys []nat.Key) {
	if observer == nil {
		return
	}
	for _, key := range keys {
		observer(key)
	}
}

// size is how many objects there are.
func (s *store) size() int {
	s.source.mu.Lock()
	defer s.source.mu.Unlock()
	return len(s.known)
}

func keyOf(o metav1.Object) nat.Key {
	return nat.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
}
