// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/natplane/natplane/nat"
)

// shardAs is a version of the shard one that names node-a, with an IPv6 address of whatever type.
func shardAs(version, uid string, ipv6 any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "network.datumapis.com/v1alpha1", "kind": "EgressShard",
		"metadata": map[string]any{"name": "one", "namespace": "default", "uid": uid, "resourceVersion": version},
		"spec":     map[string]any{"targetRef": map[string]any{"name": "node-a"}, "shardAddressIPv6": ipv6},
	}}
}

// TestAShardThatCannotBeReadIsAProblem, named with its field until it can be read, is gone, or its kind is.
func TestAShardThatCannotBeReadIsAProblem(t *testing.T) {
	bad, good := shardAs("1", "a", int64(6)), shardAs("2", "a", "2001:db8::1")
	for name, mend := range map[string]func(*store) error{
		"mended":                func(s *store) error { return s.Update(good) },
		"mended, by a list":     func(s *store) error { return s.Replace([]any{good}, "") },
		"deleted":               func(s *store) error { return s.Delete(bad) },
		"deleted, by a list":    func(s *store) error { return s.Replace(nil, "") },
		"recreated as it ought": func(s *store) error { return s.Update(shardAs("3", "b", "2001:db8::1")) },
	} {
		for way, bring := range map[string]func(*store) error{
			"by an event": func(s *store) error { return s.Add(bad) },
			"by a list":   func(s *store) error { return s.Replace([]any{bad}, "") },
			"by a stream": func(s *store) error { // the Reflector strips what streams in, and hands it over again
				stripped, err := s.Transformer()(bad)
				if err != nil {
					return err
				}
				return s.Replace([]any{stripped}, "")
			},
		} {
			t.Run(name+", "+way, func(t *testing.T) {
				s, stores := idle(t)
				var log bytes.Buffer
				s.log = slog.New(slog.NewTextHandler(&log, nil))
				require.NoError(t, bring(stores[shards]))
				require.Equal(t, []string{
					"EgressShard default/one cannot be read and is not in force: spec.shardAddressIPv6 is of type number instead of string",
				}, s.Problems())
				require.True(t, signalled(s))
				batch, _ := s.Take()
				require.Equal(t, nat.EgressShardSpec{}, batch.Shards[nat.Key{Namespace: "default", Name: "one"}].Spec)

				require.NoError(t, bring(stores[shards]), "the same again")
				require.NoError(t, stores[shards].Update(shardAs("1b", "a", int64(6))), "another version with the same fault")
				require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())

				require.NoError(t, mend(stores[shards]))
				require.Empty(t, s.Problems())
				require.True(t, signalled(s))
			})
		}
	}
}

// TestTheLastReadableVersionOfAShardStays: nobody's connections end because a field cannot be read. Another shard of the name is another.
func TestTheLastReadableVersionOfAShardStays(t *testing.T) {
	s, stores := idle(t)
	key := nat.Key{Namespace: "default", Name: "one"}
	observed := 0
	s.OnShardObserved(func(nat.Key) { observed++ })
	require.NoError(t, stores[shards].Add(shardAs("1", "a", "2001:db8::1")))
	s.Take()
	for _, version := range []string{"2", "3"} {
		require.NoError(t, stores[shards].Update(shardAs(version, "a", []any{})))
		batch, _ := s.Take()
		require.Empty(t, batch.Shards)
		require.Contains(t, s.Problems()[0], "default/one cannot be read, its last version that could be stays in force: spec.shardAddressIPv6")
		shown, _ := s.ObservedShard(key)
		require.Equal(t, "node-a", shown.Node, "its status is looked after")
	}
	require.Equal(t, 1, observed)

	require.NoError(t, stores[shards].Update(shardAs("4", "b", int64(1))))
	batch, _ := s.Take()
	require.Empty(t, batch.Shards[key].Spec.TargetRef.Name)
	require.Contains(t, s.Problems()[0], "is not in force")
}
