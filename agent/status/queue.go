// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/natplane/natplane/nat"
)

// queue holds the names of objects whose status is due, each once.
type queue struct {
	workqueue.TypedRateLimitingInterface[nat.Key]
}

func newQueue() queue {
	return queue{workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[nat.Key](retryMin, retryMax))}
}

// run settles what is due, that many at a time, until ctx ends. settle returns after which delay to look again, or 0; what it fails at is tried
// again, later each time. told hears how each attempt ended.
func (q queue) run(ctx context.Context, workers int, settle func(context.Context, nat.Key) (time.Duration, error), told func(error)) {
	var group sync.WaitGroup
	for range workers {
		group.Go(func() { q.work(ctx, settle, told) })
	}
	<-ctx.Done()
	q.ShutDown()
	group.Wait()
}

func (q queue) work(ctx context.Context, settle func(context.Context, nat.Key) (time.Duration, error), told func(error)) {
	for {
		key, end := q.Get()
		if end {
			return
		}
		again, err := settle(ctx, key)
		if ctx.Err() == nil {
			told(err)
			switch {
			case err != nil:
				q.AddRateLimited(key)
			case again > 0:
				q.AddAfter(key, again)
			default:
				q.Forget(key)
			}
		}
		q.Done(key)
	}
}
