// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nft"
)

// Removed is what Cleanup took away.
type Removed struct {
	Table            bool
	Addresses, Flows int
}

// Cleanup removes the table and then the flows that it made, so that no new one can begin in between. It refuses while an agent owns
// the table.
func Cleanup(ctx context.Context, netns int) (removed Removed, err error) {
	table, err := nft.Open(nft.Options{NetNS: netns})
	if err != nil {
		return removed, err
	}
	defer func() { err = errors.Join(err, table.Close()) }()
	flows, err := conntrack.Open(netns)
	if err != nil {
		return removed, err
	}

	translated, err := table.Backends()
	if err != nil {
		return removed, err
	}
	if err = table.Remove(); err != nil {
		if errors.Is(err, nft.ErrOwned) {
			return removed, fmt.Errorf("an agent is running on this node; stop it first: %w", err)
		}
		return removed, err
	}
	public := slices.Collect(maps.Keys(translated))
	removed.Table, removed.Addresses = true, len(public)
	removed.Flows, err = conntrack.Purge(ctx, flows, public, nil)
	return removed, err
}
