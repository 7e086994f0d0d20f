// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

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
	s.source.mu.Lock()
	note := s.put(stripped)
	s.source.mu.Unlock()
	s.deliver(note)
	return nil
}

// Delete takes the end of an object. Only its name counts.
func (s *store) Delete(object any) error {
	named, ok := object.(metav1.Object)
	if !ok {
		return fmt.Errorf("%s: deleted %T has no name", s.kind.name, object)
	}
	s.source.mu.Lock()
	s.drop(keyOf(named))
	s.source.mu.Unlock()
	s.source.signal()
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
	s.source.mu.Lock()
	listed := make(map[nat.Key]struct{}, len(stripped))
	var notes []nat.Key
	for _, o := range stripped {
		key := keyOf(o)
		listed[key] = struct{}{}
		if was, had := s.known[key]; had && was.version == o.GetResourceVersion() {
			continue
		}
		notes = append(notes, s.put(o)...)
	}
	for key := range s.known {
		if _, still := listed[key]; !still {
			s.drop(key)
		}
	}
	delete(s.source.unread, s.kind.name)
	s.source.mu.Unlock()
	s.deliver(notes)
	return nil
}

// Resync is never asked for: no resync period is set.
func (s *store) Resync() error { return nil }

// put notes an object; the source is locked. It returns the Services whose conditions are news.
func (s *store) put(object metav1.Object) (notes []nat.Key) {
	key := keyOf(object)
	was := s.known[key]
	now := entry{version: object.GetResourceVersion()}
	if s.kind.same != nil {
		now.object = object
	}
	s.known[key] = now
	if was.object != nil && s.kind.same(was.object, object) {
		return nil
	}
	s.kind.put(s.source.inbox, key, object)
	if s.kind.observe == nil {
		return nil
	}
	before, had := s.source.observed[key]
	after := s.kind.observe(object)
	s.source.observed[key] = after
	if had && before.SameAs(after) {
		return nil
	}
	return []nat.Key{key}
}

// drop notes the end of an object; the source is locked.
func (s *store) drop(key nat.Key) {
	if _, had := s.known[key]; !had {
		return
	}
	delete(s.known, key)
	s.kind.put(s.source.inbox, key, nil)
	if s.kind.observe != nil {
		delete(s.source.observed, key)
	}
}

func (s *store) deliver(notes []nat.Key) {
	s.source.signal()
	if s.source.observer == nil {
		return
	}
	for _, key := range notes {
		s.source.observer(key)
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
