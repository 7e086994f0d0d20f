// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
)

// Source follows the manifests of a directory. Run feeds it; the other methods may be called at any time from any goroutine.
type Source struct {
	dir     string
	log     *slog.Logger
	changed chan struct{}
	follow  *follower

	mu       sync.Mutex
	current  map[ref]metav1.Object
	pending  map[ref]struct{}
	complete bool
	problems []Problem
}

// Open prepares to follow a directory. The directory may appear later; what exists must be a directory. Nothing is read before Run.
func Open(dir string, log *slog.Logger) (*Source, error) {
	dir = filepath.Clean(dir)
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("manifests: %s is not a directory", dir)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Source{
		dir:     dir,
		log:     log.With("dir", dir),
		changed: make(chan struct{}, 1),
		follow:  newFollower(dir),
		current: map[ref]metav1.Object{},
		pending: map[ref]struct{}{},
	}, nil
}

// Changed signals that Take or Problems have something new.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Take returns the objects that changed since the last Take as they are now, nil for those that are gone; the first batch holds all.
// It reports complete once every file of the directory has been read, so that what is not there is not missing by accident. A broken
// file does not hold that up: its problem is listed and the others count.
func (s *Source) Take() (batch nat.Objects, complete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	batch = nat.NewObjects()
	for r := range s.pending {
		put(batch, r, s.current[r])
	}
	clear(s.pending)
	return batch, s.complete
}

// Problems returns what is wrong with the input now, by file and position.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// update takes over what the files say now and signals when that is news.
func (s *Source) update(files map[string]*file, fault *Problem, listed bool) {
	objects, problems := union(files)
	if fault != nil {
		problems = append([]Problem{*fault}, problems...)
	}
	s.mu.Lock()
	changed := s.merge(objects)
	first := listed && !s.complete
	s.complete = s.complete || listed
	before := s.problems
	s.problems = problems
	s.mu.Unlock()

	s.report(before, problems)
	if changed > 0 {
		s.log.Debug("manifests changed", "objects", changed)
	}
	if changed > 0 || first || !slices.Equal(before, problems) {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// merge notes every object that is not what it was.
func (s *Source) merge(objects map[ref]definition) (changed int) {
	for r, d := range objects {
		was, had := s.current[r]
		// Documents that did not change give the very same object.
		if had && (was == d.obj || equality.Semantic.DeepEqual(was, d.obj)) {
			continue
		}
		s.current[r] = d.obj
		s.pending[r] = struct{}{}
		changed++
	}
	if len(s.current) == len(objects) {
		return changed
	}
	for r := range s.current {
		if _, still := objects[r]; !still {
			delete(s.current, r)
			s.pending[r] = struct{}{}
			changed++
		}
	}
	return changed
}

func (s *Source) report(before, now []Problem) {
	if slices.Equal(before, now) {
		return
	}
	known := make(map[Problem]bool, len(before))
	for _, p := range before {
		known[p] = true
	}
	for _, p := range now {
		if !known[p] {
			s.log.Warn("manifest problem", "problem", p.String())
		}
	}
	if len(now) == 0 {
		s.log.Info("manifest problems repaired", "problems", len(before))
	}
}

func (s *Source) isComplete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.complete
}
