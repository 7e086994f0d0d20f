// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// The reasons of EgressShards' Programmed condition.
const (
	ReasonAddressesProgrammed Reason = "AddressesProgrammed"
	ReasonAddressUnassigned   Reason = "AddressUnassigned"
	ReasonShardConflict       Reason = "ShardConflict"
	// ReasonUplinksMissing is for a node without an uplink: there is nothing to leave by.
	ReasonUplinksMissing Reason = "UplinksMissing"
	// ReasonShardRoleOff is for a node whose agent was told to serve no shards.
	ReasonShardRoleOff Reason = "ShardRoleOff"
)

// settleShardVerdicts judges the shards that name this node; there is at most one, but for mistakes. It returns the changed ones, sorted.
func (e *Engine) settleShardVerdicts() (changed []Verdict) {
	here := e.shardsHere()
	now := make(map[Key]Verdict, len(here))
	for _, s := range here {
		v := e.judgeShard(s, here)
		now[s.key] = v
		if before, had := e.shardVerdicts[s.key]; !had || !before.Equal(v) {
			changed = append(changed, v)
		}
	}
	e.shardVerdicts = now
	slices.SortFunc(changed, CompareVerdicts)
	return changed
}

// judgeShard says what became of a shard of this node.
func (e *Engine) judgeShard(s *shard, here []*shard) Verdict {
	v := Verdict{
		Kind: KindEgressShard, Namespace: s.key.Namespace, Name: s.key.Name, Reporter: e.config.Node, Generation: s.generation,
		Addresses: []netip.Addr{}, PrimaryEgress: []netip.Addr{},
	}
	if e.config.ShardRole == ShardOff {
		v.Reason, v.Message = ReasonShardRoleOff, "the agent of this node runs with --shard=off"
		return v
	}
	if len(here) > 1 {
		var names []string
		for _, other := range here {
			names = append(names, other.key.String())
		}
		v.Reason = ReasonShardConflict
		v.Message = fmt.Sprintf("node %s is named by %s; none of them translates until one remains", s.node, strings.Join(names, ", "))
		return v
	}
	e.judgeShardAddresses(s, &v)
	// A plan knows no address of the node at all, and takes for granted that there is an uplink.
	if len(e.facts.Uplinks) == 0 && len(e.facts.Addresses) > 0 && len(v.Addresses) > 0 {
		v.Programmed, v.Reason, v.Addresses = false, ReasonUplinksMissing, []netip.Addr{}
		v.Message = "the node has no default route and no --uplink; nothing is translated"
	}
	return v
}

// judgeShardAddresses tells, family by family, what the shard translates with and why not with what was asked.
func (e *Engine) judgeShardAddresses(s *shard, v *Verdict) {
	notes := slices.Clone(s.invalid)
	conflict := false
	for _, f := range families {
		wanted, asked := e.wantedShardAddress(s, f), s.asked[f]
		if !wanted.IsValid() {
			continue
		}
		if why := e.refusesShard(s, wanted); why != "" {
			conflict = true
			notes = append(notes, why)
			continue
		}
		v.Addresses = append(v.Addresses, wanted)
		if wanted != asked {
			notes = append(notes, fmt.Sprintf("the %s address is write-once: %s stays; delete and recreate the shard to move to %s", f, wanted, orNone(asked)))
		}
	}
	if s.nat64 {
		notes = append(notes, "NAT64 is not translated by this data path")
	}
	switch {
	case len(v.Addresses) > 0 && !conflict && len(s.invalid) == 0:
		v.Programmed, v.Reason = true, ReasonAddressesProgrammed
	case conflict:
		v.Reason = ReasonShardConflict
	case len(s.invalid) > 0:
		v.Reason = ReasonInvalidAddress
	default:
		v.Reason = ReasonAddressUnassigned
		notes = append(notes, "the spec has no shard address yet; private sources of this node stay in")
	}
	if len(v.Addresses) > 0 {
		notes = append([]string{"private sources leave as " + joinAddrs(v.Addresses)}, notes...)
	}
	v.Message = strings.Join(notes, "; ")
}

func orNone(a netip.Addr) string {
	if !a.IsValid() {
		return "none"
	}
	return a.String()
}
