// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"time"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
)

// purgeTimeout bounds how long the packets of addresses that change hands wait. Selecting their flows takes milliseconds; a full table of
// a million entries takes seconds.
const purgeTimeout = 10 * time.Second

// predecessorConflict is what an operator reads who chose to keep both.
const predecessorConflict = "table ip cozy_proxy is present and --take-over=false: it rewrites packets before natplane sees them; " +
	"stop cozy-proxy and start natplane with --take-over, or remove the table with `nft delete table ip cozy_proxy`"

// syncOrTakeOver reads and corrects the table, and where cozy-proxy left its own replaces that in the same transaction.
func (l *loop) syncOrTakeOver(state nat.State) (nft.Result, error) {
	predecessor, err := l.table.Predecessor()
	if err != nil {
		return nft.Result{}, err
	}
	if predecessor != nil && l.takeOver {
		return l.replacePredecessor(state, predecessor)
	}
	if predecessor != nil {
		l.log.Warn(predecessorConflict)
	}
	l.health.update(func(h *Health) { h.Predecessor = predecessor != nil })
	return l.table.Sync(state)
}

// replacePredecessor hands the addresses of cozy-proxy over. Its translation was stateless, so no flow knows of it: every flow of its
// addresses and machines goes, while their packets are held back, and the connections are picked up translated by their next packet.
func (l *loop) replacePredecessor(state nat.State, p *nft.Predecessor) (nft.Result, error) {
	start := time.Now()
	result, err := l.table.TakeOver(state, p)
	if err != nil {
		return result, err
	}
	if p.Unreadable != nil {
		l.log.Warn("not all addresses of cozy-proxy are known; connections through the others may break", "error", p.Unreadable)
	}
	ctx, cancel := context.WithTimeout(context.Background(), purgeTimeout)
	defer cancel()
	flows, purgeErr := conntrack.Purge(ctx, l.flows, p.Addresses, p.Backends)
	releaseErr := l.table.Release()
	l.log.Info("took over from cozy-proxy", "addresses", len(p.Addresses), "machines", len(p.Backends), "flows", flows, "took", time.Since(start))
	l.health.update(func(h *Health) { h.Predecessor = false })
	if purgeErr != nil {
		// The table is right; the audit looks at every flow once more.
		l.log.Warn("not every flow of cozy-proxy's addresses was purged; the audit goes on", "error", purgeErr)
	}
	if releaseErr != nil {
		return result, fmt.Errorf("release the addresses of cozy-proxy: %w", releaseErr)
	}
	result.Former = append(result.Former, p.Addresses...)
	return result, nil
}

// acquire makes this agent the one of the node, where the table's owner flag does not do that.
func (l *loop) acquire() error {
	if l.lock != nil || l.table.Owned() {
		return nil
	}
	lock, err := l.node.Lock()
	if err != nil {
		return err
	}
	l.lock = lock
	// The other agent may have written since this one read.
	l.unsure = true
	return nil
}

// release gives the node to the next agent.
func (l *loop) release() error {
	if l.lock == nil {
		return nil
	}
	err := l.lock.Close()
	l.lock = nil
	return err
}
