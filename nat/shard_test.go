// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

type shardBuilder struct{ *EgressShard }

// egressShard names node-a and has no address yet. Its UID is its name, so that another object of the name needs another one.
func egressShard(name string, addrs ...string) shardBuilder {
	s := &EgressShard{ObjectMeta: meta(keyOf(name))}
	s.UID = types.UID(name)
	s.Spec.TargetRef = EgressShardTarget{Kind: "Node", Name: "node-a"}
	for _, text := range addrs {
		if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
			s.Spec.ShardAddressIPv4 = text
		} else {
			s.Spec.ShardAddressIPv6 = text
		}
	}
	return shardBuilder{s}.age(0)
}

func (b shardBuilder) addTo(o Objects) {
	o.Shards[Key{Namespace: b.Namespace, Name: b.Name}] = b.EgressShard
}

// age counts as svcBuilder.age does.
func (b shardBuilder) age(hours int) shardBuilder {
	b.CreationTimestamp = metav1.NewTime(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(hours) * time.Hour))
	return b
}

func (b shardBuilder) on(node string) shardBuilder { b.Spec.TargetRef.Name = node; return b }

// told sets the addresses of the status.
func (b shardBuilder) told(four, six string) shardBuilder {
	b.Status.ShardAddressIPv4, b.Status.ShardAddressIPv6 = four, six
	return b
}

func (b shardBuilder) uid(uid string) shardBuilder { b.UID = types.UID(uid); return b }

// shardOf applies the objects with a role and returns the host record and the verdict on galactic/one.
func shardOf(t *testing.T, role ShardRole, list ...object) (Host, Verdict) {
	t.Helper()
	c := testConfig("node-a")
	c.ShardCIDRs, c.ShardRole = DefaultShardCIDRs(), role
	state, verdicts := Build(c, objects(list...), Facts{Uplinks: []string{"up0"}})
	for _, v := range verdicts {
		if v.Kind == KindEgressShard && v.Name == "one" {
			return state.Host, v
		}
	}
	return state.Host, Verdict{}
}

const (
	shard4, shard6 = "203.0.113.200", "2001:db8:203::200"
	one            = "galactic/one"
)

func TestShardIsServedAsFarAsItHasAddresses(t *testing.T) {
	for _, tc := range []struct {
		name       string
		shard      shardBuilder
		four, six  string
		programmed bool
		reason     Reason
		says       string
	}{
		{"both", egressShard(one, shard4, shard6), shard4, shard6, true, ReasonAddressesProgrammed, "leave as " + shard4},
		{"IPv6 only", egressShard(one, shard6), "", shard6, true, ReasonAddressesProgrammed, shard6},
		{"none yet", egressShard(one), "", "", false, ReasonAddressUnassigned, "no shard address yet"},
		{"no address", egressShard(one, "nonsense"), "", "", false, ReasonInvalidAddress, "spec.shardAddressIPv6"},
		{"one good, one bad", egressShard(one, shard4, "nonsense"), shard4, "", false, ReasonInvalidAddress, "leave as " + shard4},
		{"a pod's", egressShard(one, "10.244.1.9"), "", "", false, ReasonShardConflict, "10.244.1.9"},
		{"a node's", egressShard(one, "198.51.100.1"), "", "", false, ReasonShardConflict, "node-a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host, v := shardOf(t, ShardAuto, tc.shard, node("node-a", "198.51.100.1").pods("10.244.1.0/24"))
			require.Equal(t, optional(tc.four), host.Shard.IPv4)
			require.Equal(t, optional(tc.six), host.Shard.IPv6)
			require.NotEmpty(t, host.ShardSources, "nothing private leaves, address or not")
			require.Equal(t, tc.programmed, v.Programmed)
			require.Equal(t, tc.reason, v.Reason)
			require.Contains(t, v.Message, tc.says)
			require.Equal(t, "node-a", v.Reporter)
		})
	}
}

func optional(text string) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	return netip.MustParseAddr(text)
}

func TestShardAddressInTheFieldOfTheOtherFamilyIsRefused(t *testing.T) {
	s := egressShard(one)
	s.Spec.ShardAddressIPv4 = shard6
	host, v := shardOf(t, ShardAuto, s)
	require.Zero(t, host.Shard)
	require.Equal(t, ReasonInvalidAddress, v.Reason)
	require.Contains(t, v.Message, "spec.shardAddressIPv4")
}

func TestNAT64IsNeverClaimed(t *testing.T) {
	s := egressShard(one, shard4, shard6)
	s.Spec.NAT64Prefix = "64:ff9b::/96"
	_, v := shardOf(t, ShardAuto, s)
	require.True(t, v.Programmed)
	require.Contains(t, v.Message, "NAT64 is not translated")
	require.Equal(t, []netip.Addr{optional(shard4), optional(shard6)}, v.Addresses)
}

func TestDrainKeepsTranslating(t *testing.T) {
	s := egressShard(one, shard4)
	s.Spec.Drain = true
	host, v := shardOf(t, ShardAuto, s)
	require.Equal(t, optional(shard4), host.Shard.IPv4)
	require.True(t, v.Programmed)
}

func TestTwoShardsOfANodeAreNone(t *testing.T) {
	host, v := shardOf(t, ShardAuto, egressShard(one, shard4), egressShard("galactic/two", shard6))
	require.Zero(t, host.Shard)
	require.NotEmpty(t, host.ShardSources)
	require.Equal(t, ReasonShardConflict, v.Reason)
	require.Contains(t, v.Message, "galactic/two")

	host, v = shardOf(t, ShardAuto, egressShard(one, shard4), egressShard("galactic/two", shard6).on("node-b"))
	require.Equal(t, optional(shard4), host.Shard.IPv4)
	require.True(t, v.Programmed)
}

func TestShardRoles(t *testing.T) {
	for _, tc := range []struct {
		role        ShardRole
		shard       bool
		served, has bool
	}{
		{ShardAuto, true, true, true}, {ShardAuto, false, false, false},
		{ShardOn, true, true, true}, {ShardOn, false, false, true},
		{ShardOff, true, false, false}, {ShardOff, false, false, false},
		{"", true, true, true},
	} {
		var list []object
		if tc.shard {
			list = append(list, egressShard(one, shard4))
		}
		host, v := shardOf(t, tc.role, list...)
		require.Equal(t, tc.served, host.Shard.IPv4.IsValid(), tc)
		require.Equal(t, tc.has, len(host.ShardSources) > 0, tc)
		if tc.role == ShardOff && tc.shard {
			require.Equal(t, ReasonShardRoleOff, v.Reason)
		}
	}
}

func TestOnlyNodesAreTargets(t *testing.T) {
	s := egressShard(one, shard4)
	s.Spec.TargetRef.Kind = "Pod"
	host, v := shardOf(t, ShardAuto, s)
	require.Zero(t, host.Shard)
	require.Zero(t, v)
}

// TestShardAddressBelongsToTheOlder object that wants it, be that a Service, a shard, or a shard of another node.
func TestShardAddressBelongsToTheOlder(t *testing.T) {
	service := svc("tenant/web").whole().ip(shard4)
	machine := vm("tenant/web", "10.244.1.10")
	t.Run("Service", func(t *testing.T) {
		host, v := shardOf(t, ShardAuto, egressShard(one, shard4, shard6), service.age(5), machine)
		require.False(t, host.Shard.IPv4.IsValid())
		require.Equal(t, optional(shard6), host.Shard.IPv6, "the other family is not affected")
		require.Equal(t, ReasonShardConflict, v.Reason)
		require.Contains(t, v.Message, "Service tenant/web")
		require.Equal(t, []netip.Addr{optional(shard6)}, v.Addresses)
	})
	t.Run("shard", func(t *testing.T) {
		all := objects(egressShard(one, shard4).age(9), service.age(5), machine)
		c := testConfig("node-a")
		c.ShardCIDRs = DefaultShardCIDRs()
		state, verdicts := Build(c, all, Facts{})
		require.Equal(t, optional(shard4), state.Host.Shard.IPv4)
		require.Empty(t, state.Addresses, "never both")
		for _, v := range verdicts {
			if v.Kind == KindService {
				require.Equal(t, ReasonAddressConflict, v.Reason)
				require.Contains(t, v.Message, one)
			}
		}
	})
	t.Run("shard of another node", func(t *testing.T) {
		host, v := shardOf(t, ShardAuto, egressShard(one, shard4), egressShard("galactic/two", shard4).on("node-b").age(3))
		require.Zero(t, host.Shard)
		require.Equal(t, ReasonShardConflict, v.Reason)
		require.Contains(t, v.Message, "older EgressShard galactic/two")
	})
	t.Run("until it leaves", func(t *testing.T) {
		c := testConfig("node-a")
		c.ShardCIDRs = DefaultShardCIDRs()
		e := NewEngine(c, nil)
		e.Apply(objects(egressShard(one, shard4), service.age(5), machine), Facts{})
		gone := NewObjects()
		gone.Services[keyOf("tenant/web")] = nil
		out := e.Apply(gone, Facts{})
		require.NotNil(t, out.Delta.Host)
		require.Equal(t, optional(shard4), e.State().Host.Shard.IPv4)
		require.True(t, e.Verdicts()[0].Programmed)
	})
}

// TestFieldCase_B62_ShardAddressIsWriteOnce: an edit moves nothing, whether this agent programmed the first address or an earlier one did.
func TestFieldCase_B62_ShardAddressIsWriteOnce(t *testing.T) {
	c := testConfig("node-a")
	c.ShardCIDRs = DefaultShardCIDRs()
	e := NewEngine(c, nil)
	e.Apply(objects(egressShard(one, shard4)), Facts{})

	out := e.Apply(objects(egressShard(one, "203.0.113.201")), Facts{})
	require.Nil(t, out.Delta.Host)
	require.Equal(t, optional(shard4), e.State().Host.Shard.IPv4)
	require.Len(t, out.Verdicts, 1)
	require.True(t, out.Verdicts[0].Programmed)
	require.Contains(t, out.Verdicts[0].Message, "write-once")
	require.Contains(t, out.Verdicts[0].Message, "203.0.113.201")

	e.Apply(objects(egressShard(one)), Facts{})
	require.Equal(t, optional(shard4), e.State().Host.Shard.IPv4, "taking it away is an edit too")

	fresh, v := shardOf(t, ShardAuto, egressShard(one, "203.0.113.201").told(shard4, ""))
	require.Equal(t, optional(shard4), fresh.Shard.IPv4, "after a restart the status knows")
	require.Contains(t, v.Message, "write-once")

	e.Apply(objects(egressShard(one, "203.0.113.201").uid("another")), Facts{})
	require.Equal(t, optional("203.0.113.201"), e.State().Host.Shard.IPv4, "another object of the name starts anew")
}

func TestShardMovesToAnotherNode(t *testing.T) {
	c := testConfig("node-a")
	c.ShardCIDRs = DefaultShardCIDRs()
	e := NewEngine(c, nil)
	e.Apply(objects(egressShard(one, shard4)), Facts{})
	out := e.Apply(objects(egressShard(one, shard4).on("node-b")), Facts{})
	require.Zero(t, e.State().Host.Shard)
	require.Empty(t, e.State().Host.ShardSources)
	require.Empty(t, e.Verdicts(), "the other node speaks for it")
	require.Empty(t, out.Verdicts)
}

// TestAddressesOfOtherShardsAreKnown, so that what the network still sends here after a shard has moved does not go back to it.
func TestAddressesOfOtherShardsAreKnown(t *testing.T) {
	elsewhere := func() shardBuilder { return egressShard(one, shard4, shard6).on("node-b") }
	idle := func(list ...string) []OwnedAddress {
		var owned []OwnedAddress
		for _, a := range list {
			owned = append(owned, OwnedAddress{optional(a), keyOf(one)})
		}
		return owned
	}
	machine := vm("tenant/web", "10.244.1.10")
	for _, tc := range []struct {
		name    string
		objects []object
		want    []OwnedAddress
	}{
		{"of another node", []object{elsewhere()}, idle(shard4, shard6)},
		{"served here", []object{egressShard(one, shard4, shard6)}, nil},
		{"named with another", []object{egressShard(one, shard4), egressShard("galactic/two")}, idle(shard4)},
		{"of a node", []object{elsewhere(), node("node-a", shard4)}, idle(shard6)},
		{"in use before an edit", []object{egressShard(one, "203.0.113.201").told(shard4, "").on("node-b")}, idle(shard4)},
		{"held by a Service", []object{elsewhere(), svc("tenant/web").whole().ip(shard4).age(5), machine}, idle(shard6)},
		{"wanted by a younger Service", []object{elsewhere().age(9), svc("tenant/web").whole().ip(shard4).age(5), machine}, idle(shard4, shard6)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host, _ := shardOf(t, ShardAuto, tc.objects...)
			require.Equal(t, tc.want, host.IdleShards)
		})
	}
}

// TestAddressThatAShardKeptIsNobodyElses: after an edit the spec says nothing of what the shard still translates with.
func TestAddressThatAShardKeptIsNobodyElses(t *testing.T) {
	for name, edited := range map[string]shardBuilder{
		"not in the status yet": egressShard(one),
		"in the status":         egressShard(one).told(shard4, ""),
	} {
		t.Run(name, func(t *testing.T) {
			c := testConfig("node-a")
			c.ShardCIDRs = DefaultShardCIDRs()
			e := NewEngine(c, nil)
			e.Apply(objects(egressShard(one, shard4).age(9)), Facts{})
			e.Apply(objects(edited.age(9)), Facts{})
			require.Equal(t, optional(shard4), e.State().Host.Shard.IPv4)
			e.Apply(objects(svc("tenant/web").whole().ip(shard4).age(5), vm("tenant/web", "10.244.1.10")), Facts{})
			checkInvariants(t, e.State())
		})
	}
}

// TestStatusOfAShardIsNoChange, or each status write would come round again.
func TestStatusOfAShardIsNoChange(t *testing.T) {
	c := testConfig("node-a")
	c.ShardCIDRs = DefaultShardCIDRs()
	e := NewEngine(c, nil)
	e.Apply(objects(egressShard(one, shard4, shard6)), Facts{})
	out := e.Apply(objects(egressShard(one, shard4, shard6).told(shard4, shard6)), Facts{})
	require.True(t, out.Delta.Empty())
	require.Empty(t, out.Verdicts)
}

func TestShardWithoutAnUplinkTranslatesNothing(t *testing.T) {
	c := testConfig("node-a")
	c.ShardCIDRs = DefaultShardCIDRs()
	e := NewEngine(c, nil)
	facts := Facts{Addresses: []netip.Prefix{netip.MustParsePrefix("198.51.100.1/24")}}
	e.Apply(objects(egressShard(one, shard4)), facts)
	v := e.Verdicts()[0]
	require.False(t, v.Programmed)
	require.Equal(t, ReasonUplinksMissing, v.Reason)
	require.Empty(t, v.Addresses)

	facts.Uplinks = []string{"up0"}
	out := e.Apply(NewObjects(), facts)
	require.Len(t, out.Verdicts, 1)
	require.True(t, out.Verdicts[0].Programmed)
}

// TestNewGenerationOfAShardIsReported, though nothing else is new: its status says which generation was judged.
func TestNewGenerationOfAShardIsReported(t *testing.T) {
	c := testConfig("node-a")
	c.ShardCIDRs = DefaultShardCIDRs()
	e := NewEngine(c, nil)
	e.Apply(objects(egressShard(one, shard4)), Facts{})
	drained := egressShard(one, shard4)
	drained.Spec.Drain, drained.Generation = true, 2
	out := e.Apply(objects(drained), Facts{})
	require.Nil(t, out.Delta.Host)
	require.Len(t, out.Verdicts, 1)
	require.EqualValues(t, 2, out.Verdicts[0].Generation)
}
