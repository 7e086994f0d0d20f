// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"context"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// quiet is how long the directory must be still after an event; one save is several events.
	quiet = 5 * time.Millisecond
	// patience bounds the wait for a still directory.
	patience = 50 * time.Millisecond
	// rescan is the interval of the fallback, which only compares what stat tells: network file systems and replaced parent
	// directories give no events.
	rescan = time.Second
	// rescanUnwatched is the interval while there is nothing to get events from.
	rescanUnwatched = 100 * time.Millisecond
)

// Run follows the directory until ctx ends.
func (s *Source) Run(ctx context.Context) {
	r := runner{source: s, watch: newWatch(s.dir)}
	defer r.watch.close()
	if r.watch.err != nil {
		s.log.Warn("no change events, looking at the files instead", "interval", rescanUnwatched, "error", r.watch.err)
	}
	r.timer = time.NewTimer(0)
	defer r.timer.Stop()
	r.loop(ctx)
}

type runner struct {
	source *Source
	watch  *watch
	timer  *time.Timer
	first  time.Time // of the events that are waited out; zero without
	faulty bool      // the last pass could not list the directory
}

func (r *runner) loop(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-r.watch.events():
			r.event(event)
		case <-r.watch.errors():
			// Events were lost (fsnotify.ErrEventOverflow) or the watch is broken.
			r.source.follow.allDirty = true
			r.watch.lost()
			r.soon()
		case <-r.timer.C:
			r.pass()
		}
	}
}

func (r *runner) event(event fsnotify.Event) {
	name, ours := r.watch.about(event)
	switch {
	case !ours:
		return
	case isManifest(name):
		r.source.follow.dirty[name] = true
	case name == "" && (event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)):
		r.watch.lost()
	}
	r.soon()
}

func (r *runner) soon() {
	now := time.Now()
	if r.first.IsZero() {
		r.first = now
	}
	r.timer.Reset(max(0, min(quiet, patience-now.Sub(r.first))))
}

func (r *runner) pass() {
	r.first = time.Time{}
	// The watch comes first: what changes after the files were read must give an event.
	watched := r.watch.ensure()
	follow := r.source.follow
	out := follow.pass()
	if out.changed || (out.fault != nil) != r.faulty || !r.source.isComplete() {
		r.source.update(follow.files, out.fault, out.listed)
	}
	r.faulty = out.fault != nil
	switch {
	case out.again > 0:
		r.timer.Reset(out.again)
	case !watched:
		r.timer.Reset(rescanUnwatched)
	default:
		r.timer.Reset(rescan)
	}
}
