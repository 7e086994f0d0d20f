// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
)

// WrapFlows puts something between the agent and the table of flows.
func WrapFlows(o *Options, wrap func(conntrack.Table) conntrack.Table) { o.hooks.flows = wrap }

// HookCommit has f called in place of send for every transaction of the table.
func HookCommit(o *Options, f func(send func() error) error) { o.hooks.commit = f }

// State is what the agent has programmed, or tries to program, between two passes.
func (a *Agent) State(ctx context.Context) (state nat.State, err error) {
	err = a.loop.query(ctx, func() {
		if a.loop.engine != nil {
			state = a.loop.engine.State()
		}
	})
	return state, err
}
