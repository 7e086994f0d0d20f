// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// ShardRole says whether a node serves EgressShards. With the role, nothing leaves by an uplink with a private source of the shard
// ranges, whether or not there is a shard to translate it (R19).
type ShardRole string

// The roles.
const (
	// ShardAuto has the role while an EgressShard names the node.
	ShardAuto ShardRole = "auto"
	// ShardOn has it always: deleting the shard closes the way out instead of opening it.
	ShardOn ShardRole = "on"
	// ShardOff serves no shard.
	ShardOff ShardRole = "off"
)

// shard is an EgressShard, of whatever node.
type shard struct {
	key     Key
	uid     types.UID
	created int64
	node    string
	// asked is what the spec has; told is what the status says that the data path has.
	asked, told [2]netip.Addr
	invalid     []string
	nat64       bool
	generation  int64
}

func newShard(o *EgressShard) *shard {
	if o == nil {
		return nil
	}
	s := &shard{
		key:     Key{Namespace: o.Namespace, Name: o.Name},
		uid:     o.UID,
		created: o.CreationTimestamp.Unix(),
		nat64:   o.Spec.NAT64Prefix != "",

		generation: o.Generation,
	}
	if kind := o.Spec.TargetRef.Kind; kind == "" || kind == "Node" {
		s.node = o.Spec.TargetRef.Name
	}
	s.asked[ipv4] = s.read("spec.shardAddressIPv4", o.Spec.ShardAddressIPv4, ipv4)
	s.asked[ipv6] = s.read("spec.shardAddressIPv6", o.Spec.ShardAddressIPv6, ipv6)
	if a, err := ParseAddress(o.Status.ShardAddressIPv4); err == nil && a.Is4() {
		s.told[ipv4] = a
	}
	if a, err := ParseAddress(o.Status.ShardAddressIPv6); err == nil && a.Is6() {
		s.told[ipv6] = a
	}
	return s
}

// read returns the zero address for a field that is empty or cannot be used.
func (s *shard) read(field, text string, f family) netip.Addr {
	if text == "" {
		return netip.Addr{}
	}
	a, err := ParseAddress(text)
	switch {
	case err != nil:
		s.invalid = append(s.invalid, field+": "+err.Error())
	case familyOf(a) != f:
		s.invalid = append(s.invalid, field+": "+text+" is not an "+f.String()+" address")
	default:
		return a
	}
	return netip.Addr{}
}

func (s *shard) equal(o *shard) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.key == o.key && s.uid == o.uid && s.created == o.created && s.node == o.node && s.asked == o.asked &&
		s.told == o.told && s.nat64 == o.nat64 && s.generation == o.generation && slices.Equal(s.invalid, o.invalid)
}

// older orders shards by age as Services are.
func (s *shard) older(o *shard) int {
	return cmp.Or(cmp.Compare(s.created, o.created), CompareKeys(s.key, o.key))
}

// olderThan decides between a shard and a Service that want the same address.
func (s *shard) olderThan(o *service) bool {
	return cmp.Or(cmp.Compare(s.created, o.created), CompareKeys(s.key, o.key)) <= 0
}

// claims lists the addresses that are the shard's, programmed on its node or to be.
func (s *shard) claims() []netip.Addr {
	return slices.DeleteFunc(sortAddrs([]netip.Addr{s.asked[ipv4], s.asked[ipv6], s.told[ipv4], s.told[ipv6]}),
		func(a netip.Addr) bool { return !a.IsValid() })
}

// takeShards keeps the EgressShards of all nodes, because each of them claims its addresses.
func (e *Engine) takeShards(batch Objects, d *dirty) {
	for key, object := range batch.Shards {
		before, after := e.shards[key], newShard(object)
		if after.equal(before) {
			continue
		}
		d.host, d.shards = true, true
		for _, s := range []*shard{before, after} {
			if s == nil {
				continue
			}
			for _, a := range s.claims() {
				if c := e.claims[a]; c != nil {
					d.claim(c)
				}
			}
		}
		if after == nil {
			delete(e.shards, key)
		} else {
			e.shards[key] = after
		}
	}
	if d.shards {
		e.shardClaims = map[netip.Addr]*shard{}
		for _, s := range e.shards {
			for _, a := range s.claims() {
				if rival := e.shardClaims[a]; rival == nil || s.older(rival) < 0 {
					e.shardClaims[a] = s
				}
			}
		}
	}
}

// here lists the shards that name this node, the oldest first.
func (e *Engine) shardsHere() []*shard {
	var list []*shard
	for _, s := range e.shards {
		if s.node == e.config.Node {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, (*shard).older)
	return list
}

// hasShardRole reports whether private sources must not leave untranslated.
func (e *Engine) hasShardRole(here []*shard) bool {
	switch e.config.ShardRole {
	case ShardOn:
		return true
	case ShardOff:
		return false
	}
	return len(here) > 0
}

// served is the shard that this node translates for, as far as its addresses may be used.
type servedShard struct {
	shard     *shard
	addresses [2]netip.Addr
}

// chooseShard settles the addresses of the one shard of this node; two shards are none (R19).
func (e *Engine) chooseShard(here []*shard) *servedShard {
	if len(here) != 1 || e.config.ShardRole == ShardOff {
		return nil
	}
	served := &servedShard{shard: here[0]}
	for _, f := range families {
		a := e.wantedShardAddress(here[0], f)
		if a.IsValid() && e.refusesShard(here[0], a) == "" {
			served.addresses[f] = a
		}
	}
	return served
}

// wantedShardAddress is the address in the spec, unless the shard translates with another already: the field is write-once, and
// moving the connections of everybody behind it by an edit is what that is there to prevent.
func (e *Engine) wantedShardAddress(s *shard, f family) netip.Addr {
	if e.served != nil && e.served.shard.uid == s.uid && e.served.shard.key == s.key && e.served.addresses[f].IsValid() {
		return e.served.addresses[f]
	}
	if s.told[f].IsValid() && s.asked[f].IsValid() {
		return s.told[f]
	}
	return s.asked[f]
}

// refusesShard returns why a shard must not translate with an address, or "".
func (e *Engine) refusesShard(s *shard, a netip.Addr) string {
	if why := e.rails.mayBePublic(a); why != "" {
		return why
	}
	if owner := e.shardClaims[a]; owner != nil && owner.key != s.key {
		return fmt.Sprintf("%s belongs to the older EgressShard %s: delete one of the two, or delete and recreate this one with another address", a, owner.key)
	}
	if c := e.claims[a]; c != nil {
		if holder := oldestHolder(c.grants); holder != nil {
			return fmt.Sprintf("%s belongs to the older Service %s: give the Service another address, or delete and recreate this shard with another one",
				a, holder.entry.key)
		}
	}
	return ""
}

// settleShard fills the shard's part of the host record.
func (e *Engine) settleShard(h *Host) {
	here := e.shardsHere()
	e.served = e.chooseShard(here)
	e.settleTenants(h)
	if e.hasShardRole(here) {
		var sources []NamedRange
		for _, p := range e.config.ShardCIDRs {
			sources = append(sources, NamedRange{RangeOf(p), "--shard-source-cidr"})
		}
		h.ShardSources = mergeNamed(sources)
	}
	if s := e.served; s != nil && (s.addresses[ipv4].IsValid() || s.addresses[ipv6].IsValid()) {
		h.Shard = Shard{Owner: s.shard.key, IPv4: s.addresses[ipv4], IPv6: s.addresses[ipv6], Echo: e.config.ShardEcho}
	}
	h.IdleShards = e.idleShards()
}

// idleShards lists the addresses of all shards but those that are translated here, and those that a Service holds.
func (e *Engine) idleShards() []OwnedAddress {
	var list []OwnedAddress
	for a, s := range e.shardClaims {
		served := e.served != nil && e.served.addresses[familyOf(a)] == a
		if c := e.claims[a]; served || c != nil && c.record != nil || a != e.wantedShardAddress(s, familyOf(a)) || e.rails.mayBePublic(a) != "" {
			continue
		}
		list = append(list, OwnedAddress{Addr: a, Owner: s.key})
	}
	slices.SortFunc(list, func(a, b OwnedAddress) int { return a.Addr.Compare(b.Addr) })
	return list
}

// Shard returns the shard that this node serves, the zero value for none.
func (e *Engine) Shard() Shard {
	if e.host == nil {
		return Shard{}
	}
	return e.host.Shard
}

func (e *Engine) shardTranslations() []Translation {
	var list []Translation
	if e.served == nil {
		return nil
	}
	for _, f := range families {
		if a := e.served.addresses[f]; a.IsValid() {
			list = append(list, Translation{Public: a, Family: f.String(), Method: ByShard, Owner: e.served.shard.key.String()})
		}
	}
	return list
}
