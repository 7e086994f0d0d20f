// SPDX-License-Identifier: Apache-2.0

package agent

import "github.com/natplane/natplane/conntrack"

// hooks let the tests of this package put failures between the agent and the kernel. The zero value changes nothing.
type hooks struct {
	// flows may wrap the table of flows.
	flows func(conntrack.Table) conntrack.Table
	// commit is called in place of send for every transaction.
	commit func(send func() error) error
}

func (h hooks) wrap(t conntrack.Table) conntrack.Table {
	if h.flows == nil {
		return t
	}
	return h.flows(t)
}
