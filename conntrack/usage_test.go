// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

func TestUseCountsWhatAnAddressLends(t *testing.T) {
	for _, noFilter := range []bool{false, true} {
		for _, w := range []world{world(IPv4), world(IPv6)} {
			table := &fakeTable{noFilter: noFilter}
			table.insert(
				w.flow("tcp 10.0.0.1:1000 9.9.9.9:443 9.9.9.9:443 5.5.5.5:2001"),
				w.flow("tcp 10.0.0.2:1000 9.9.9.9:443 9.9.9.9:443 5.5.5.5:2002"),
				w.flow("tcp 10.0.0.2:1001 8.8.8.8:443 8.8.8.8:443 5.5.5.5:2001"),
				w.flow("udp 10.0.0.2:1001 9.9.9.9:443 9.9.9.9:443 5.5.5.5:2001"),
				w.flow("icmp 10.0.0.2:7 9.9.9.9:0 9.9.9.9:8 5.5.5.5:0"),
				// Of no account: another address, and one that came in.
				w.flow("tcp 10.0.0.1:1000 7.7.7.7:443 7.7.7.7:443 5.5.5.6:2001"),
				w.flow("tcp 9.9.9.9:1000 5.5.5.5:443 10.0.0.1:443 9.9.9.9:1000"),
			)
			u, err := Use(t.Context(), table, w.addr("5.5.5.5"))
			require.NoError(t, err)
			require.Equal(t, Usage{
				Flows: 5, Ports: 4, Busiest: w.port("9.9.9.9:443"), BusiestProto: nat.TCP, BusiestPorts: 2,
			}, u)
			u, err = Use(t.Context(), table, w.addr("5.5.5.7"))
			require.NoError(t, err)
			require.Zero(t, u)
		}
	}
}

func TestUseTellsWhatFailed(t *testing.T) {
	broken := errors.New("broken")
	table := &fakeTable{breakDump: func(Query) error { return broken }}
	_, err := Use(t.Context(), table, world(IPv4).addr("5.5.5.5"))
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "5.5.5.5")
}
