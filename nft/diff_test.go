// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

func TestDiff(t *testing.T) {
	el := func(addr, comment, value string) element {
		e := element{key: key{set: whole4, addr: ip(addr)}, comment: comment}
		if value != "" {
			e.value = target(value)
		}
		return e
	}
	a, b := el("203.0.113.1", "a", "10.0.0.1:0"), el("203.0.113.2", "b", "10.0.0.2:0")
	aValue, aComment := el("203.0.113.1", "a", "10.0.0.9:0"), el("203.0.113.1", "z", "10.0.0.1:0")
	aHosted := a
	aHosted.set = hosted4
	for name, c := range map[string]struct{ old, new, del, add []element }{
		"nothing":        {},
		"same":           {old: []element{a, b}, new: []element{b, a}},
		"all new":        {new: []element{a, b}, add: []element{a, b}},
		"all gone":       {old: []element{a, b}, del: []element{a, b}},
		"value":          {old: []element{a, b}, new: []element{aValue, b}, del: []element{a}, add: []element{aValue}},
		"comment":        {old: []element{a}, new: []element{aComment}, del: []element{a}, add: []element{aComment}},
		"other set":      {old: []element{a}, new: []element{aHosted}, del: []element{a}, add: []element{aHosted}},
		"new twice":      {new: []element{a, aComment}, add: []element{a}},
		"kept, twice":    {old: []element{a}, new: []element{a, aComment}},
		"old twice":      {old: []element{a, a}, del: []element{a}},
		"both twice":     {old: []element{a, a}, new: []element{a, a}},
		"changed, twice": {old: []element{a, a}, new: []element{aValue, aValue}, del: []element{a}, add: []element{aValue}},
	} {
		del, add := diff(c.old, c.new)
		require.Equal(t, c.del, del, name)
		require.Equal(t, c.add, add, name)
	}
}

// An address that goes from one record to another within a difference stays, with the comment of the new one.
func TestAddressMovesBetweenRecords(t *testing.T) {
	a := nat.Address{Public: ip("203.0.113.1"), Owner: owner("ns", "svc"), Hosted: true}
	shard := nat.Host{Shard: nat.Shard{Owner: owner("ns", "shard"), IPv4: a.Public}}
	old, new, invalid := deltaElements(&nat.Delta{
		Addresses: []nat.Change[nat.Address]{{Old: &a}},
		Host:      &nat.Change[nat.Host]{Old: &nat.Host{}, New: &shard},
	})
	require.Empty(t, invalid)
	del, add := diff(old, new)
	require.Equal(t, []string{`@hosted4 203.0.113.1 comment "ns/svc"`, `@listed4 203.0.113.1 comment "ns/svc"`, `@public4 203.0.113.1 comment "ns/svc"`}, texts(del))
	require.Equal(t, []string{`@hosted4 203.0.113.1 comment "ns/shard"`, `@public4 203.0.113.1 comment "ns/shard"`}, texts(add))
}

// Bad records are no elements in both directions, so a difference never deletes what was never written.
func TestDeltaOfBadRecords(t *testing.T) {
	good := nat.Address{Public: ip("203.0.113.1"), Owner: owner("ns", "svc")}
	bad := good
	bad.Whole = nat.Forward{Backend: ip("fd00::1")}
	old, new, invalid := deltaElements(&nat.Delta{Addresses: []nat.Change[nat.Address]{{Old: &good, New: &bad}}})
	require.Len(t, old, 1)
	require.Empty(t, new)
	require.Len(t, invalid, 1)
	old, new, invalid = deltaElements(&nat.Delta{Addresses: []nat.Change[nat.Address]{{Old: &bad, New: &good}}})
	require.Empty(t, old)
	require.Len(t, new, 1)
	require.Empty(t, invalid)
}
