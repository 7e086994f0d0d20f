// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
)

// Removed is what Cleanup took away.
type Removed struct {
	Table            bool
	Addresses, Flows int
}

// Cleanup removes the table and then the flows that it made, so that no new one can begin in between, and last what leads their replies back to
// tenants. It refuses while an agent works on the node, before it touches anything: that one would put the table back.
func Cleanup(ctx context.Context, netns int) (removed Removed, err error) {
	n, err := node.Open(node.Options{NetNS: netns})
	if err != nil {
		return removed, err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	lock, err := n.Lock()
	if err != nil {
		return removed, refusal(err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	table, err := nft.Open(nft.Options{NetNS: netns})
	if err != nil {
		return removed, err
	}
	defer func() { err = errors.Join(err, table.Close()) }()
	flows, err := conntrack.Open(netns)
	if err != nil {
		return removed, err
	}

	public, exists, err := table.Addresses()
	if err != nil {
		return removed, err
	}
	if exists {
		if err := table.Remove(); err != nil {
			return removed, refusal(err)
		}
		removed.Table, removed.Addresses = true, len(public)
		if removed.Flows, err = conntrack.Purge(ctx, flows, public, nil); err != nil {
			return removed, err
		}
	}
	if _, err := table.RemoveTenants(); err != nil {
		return removed, refusal(err)
	}
	return removed, n.KeepTenantRules(nil)
}

// refusal says what to do about an agent that is there: one that owns the table, or holds the lock where tables have no owner.
func refusal(err error) error {
	if errors.Is(err, nft.ErrOwned) || errors.Is(err, node.ErrLocked) {
		return fmt.Errorf("an agent is running on this node; stop it first: %w", err)
	}
	return err
}
