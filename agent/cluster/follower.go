// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
)

const (
	// calm is how long a kind must have been followed for its next trouble to count as the first again.
	calm = 20 * time.Second
	// patience is how long a kind may be refused before the log says so: a server that just started refuses every account for a moment.
	patience = 3 * time.Second
	// absentPoll and absentPollMax are the delays between two questions for a kind that the server does not know: it heals within seconds,
	// and a thousand nodes of a cluster without the CRD ask 100 times a second in all.
	absentPoll    = time.Second
	absentPollMax = 10 * time.Second
)

// retryDelays follow answers that are no help: refused, expired, overloaded. A broken connection is the gate's.
func retryDelays() wait.Backoff {
	return wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 20, Cap: 10 * time.Second}
}

// follower keeps one kind up to date.
type follower struct {
	source    *Source
	kind      *kind
	store     *store
	reflector *cache.Reflector
	retry     wait.Backoff
	// failing is since when the kind could not be read; zero when it can. loud is true once the log said so.
	failing time.Time
	loud    bool
}

func newFollower(s *Source, k *kind) *follower {
	f := &follower{source: s, kind: k, store: newStore(s, k), retry: retryDelays()}
	logger, inside := quietLogger(s.log), retryDelays()
	f.reflector = cache.NewReflectorWithOptions(k.listWatch(f.answered), k.expected, f.store, cache.ReflectorOptions{
		Name: k.name, Logger: &logger, Backoff: &inside,
	})
	return f
}

func (f *follower) run(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		err := f.reflector.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > calm {
			f.retry = retryDelays()
		}
		if err != nil && f.absent(ctx, err) {
			f.await(ctx)
			continue
		}
		if err != nil {
			f.trouble(fmt.Sprintf("%s cannot be read: %v", f.kind.name, err))
		}
		pause(ctx, f.retry.Step())
	}
}

// answered ends whatever was wrong with the kind.
func (f *follower) answered() {
	f.failing = time.Time{}
	f.source.setProblem(f.kind.name, "")
	if f.loud {
		f.loud = false
		f.source.log.Info("read again", "kind", f.kind.name)
	}
}

func (f *follower) trouble(text string) {
	f.source.setProblem(f.kind.name, text)
	if f.failing.IsZero() {
		f.failing = time.Now()
	}
	if !f.loud && time.Since(f.failing) > patience {
		f.loud = true
		f.source.log.Warn("objects cannot be read; the last known ones stay in force", "kind", f.kind.name, "problem", text)
	}
}

// absent reports whether the error means that the server does not know the kind, which only an optional kind may be. The server's own word
// is asked for as well: a 404 alone may come from whatever stands between.
func (f *follower) absent(ctx context.Context, err error) bool {
	if f.kind.optional == nil || !apierrors.IsNotFound(err) {
		return false
	}
	served, err := f.kind.optional(ctx)
	return err == nil && !served
}

// await says that the kind is absent and waits until the server knows it. An absent kind counts as read; objects that there were go when
// the second poll says the same as the first, because a server that just started may not know its CRDs yet.
func (f *follower) await(ctx context.Context) {
	delays := wait.Backoff{Duration: absentPoll, Factor: 1.5, Jitter: 0.2, Steps: 20, Cap: absentPollMax}
	text := fmt.Sprintf("%s are not served: the API server does not know the kind (its CRD is absent)", f.kind.name)
	f.source.setProblem(f.kind.name, text)
	if !f.loud {
		f.loud = true
		f.source.log.Info("the kind is not served; asking for it now and then", "kind", f.kind.name)
	}
	for missing := 1; ctx.Err() == nil; {
		if missing >= 2 || f.store.size() == 0 {
			_ = f.store.Replace(nil, "") // fails only for an object, and there is none
		}
		pause(ctx, delays.Step())
		switch served, err := f.kind.optional(ctx); {
		case err != nil:
		case served:
			return
		default:
			missing++
		}
	}
}

// pause waits, but not longer than ctx.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
