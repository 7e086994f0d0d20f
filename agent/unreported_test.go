// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

func TestTheLaterWordCounts(t *testing.T) {
	verdict := func(kind, name, message string) nat.Verdict {
		return nat.Verdict{Kind: kind, Namespace: "n", Name: name, Message: message}
	}
	key := func(name string) nat.Key { return nat.Key{Namespace: "n", Name: name} }
	var u unreported
	u.add(nat.Outcome{
		Verdicts: []nat.Verdict{verdict(nat.KindService, "b", "first"), verdict(nat.KindService, "c", "first")},
		Gone:     []nat.Key{key("a"), key("s")},
	})
	u.add(nat.Outcome{
		Verdicts: []nat.Verdict{
			verdict(nat.KindService, "a", "back"), verdict(nat.KindService, "b", "second"), verdict(nat.KindEgressShard, "s", "a shard"),
		},
		Gone: []nat.Key{key("c")},
	})
	verdicts, gone := u.take()
	require.Equal(t, []nat.Verdict{
		verdict(nat.KindService, "a", "back"), verdict(nat.KindService, "b", "second"), verdict(nat.KindEgressShard, "s", "a shard"),
	}, verdicts)
	require.Equal(t, []nat.Key{key("c"), key("s")}, gone, "a shard does not speak for the Service of its name")
	require.True(t, u.empty())
}
