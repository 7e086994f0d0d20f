// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"sync"

	"github.com/natplane/natplane/nat"
)

// Together is the Reporters of Services and of EgressShards as one. A shard's verdict means nothing to the one, nor a Service's to the other.
type Together struct {
	Services *Reporter
	Shards   *ShardReporter
}

// Report tells both.
func (t Together) Report(changed []nat.Verdict, gone []nat.Key) {
	t.Services.Report(changed, gone)
	t.Shards.Report(changed, gone)
}

// Run writes until ctx ends.
func (t Together) Run(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { t.Services.Run(ctx) })
	group.Go(func() { t.Shards.Run(ctx) })
	group.Wait()
}
