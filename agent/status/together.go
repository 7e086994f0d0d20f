// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"

	"github.com/natplane/natplane/nat"
)

// Together is all that write status as one. A shard's verdict means nothing to those of Services, nor a Service's to that of shards.
type Together struct {
	Services *Reporter
	Vouches  *Voucher
	Shards   *ShardReporter
}

// Report tells all.
func (t Together) Report(changed []nat.Verdict, gone []nat.Key) {
	t.Services.Report(changed, gone)
	t.Vouches.Report(changed, gone)
	t.Shards.Report(changed, gone)
}

// Observe tells those of Services that the conditions of one changed.
func (t Together) Observe(key nat.Key) {
	t.Services.Observe(key)
	t.Vouches.Observe(key)
}

// Run writes until ctx ends.
func (t Together) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { t.Services.Run(ctx) })
	group.Go(func() { t.Vouches.Run(ctx) })
	group.Go(func() { t.Shards.Run(ctx) })
	group.Wait()
}
