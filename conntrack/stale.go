// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/natplane/natplane/nat"
)

// Verdict says whether a flow may stay, and if not, why.
type Verdict uint8

// The verdicts. Every one but Legal means that the flow is stale.
const (
	// Legal: the committed state would create the flow, or it is none of ours.
	Legal Verdict = iota
	// Released: translated for an address that is no longer ours.
	Released
	// Moved: sent to another backend or port than the state has.
	Moved
	// Unlisted: the state forwards nothing for this protocol and port.
	Unlisted
	// Refused: from a client outside the source ranges.
	Refused
	// Direct: to a public address and not translated, although new packets are
	// translated or dropped.
	Direct
	// Unmasqueraded: sent to a backend on another node with the client's
	// address, or from a client whose connections are not translated here.
	Unmasqueraded
	// Detached: left with a public address that its source may not use.
	Detached
	// Bare: from a source that has a public address by now, and without it.
	Bare
	// InCluster: left with a public address towards the cluster itself.
	InCluster
	// Borrowed: from the node's own side, with a public address as its source.
	Borrowed
	// Orphaned: of a tenant that is gone; its replies would go to whoever has
	// the address in the main table.
	Orphaned

	verdicts
)

// String is the word that the log uses.
func (v Verdict) String() string {
	names := [verdicts]string{"legal", "released", "moved", "unlisted", "refused", "direct",
		"unmasqueraded", "detached", "bare", "in-cluster", "borrowed", "orphaned"}
	if v < verdicts {
		return names[v]
	}
	return "unknown"
}

// Former tells what a state says no longer: whether the address was public
// here, whether it stood for the backend, and whether the zone was a tenant's.
type Former interface {
	Public(a netip.Addr) bool
	StoodFor(public, backend netip.Addr) bool
	Tenant(zone uint16) bool
}

// Judge decides whether the committed state would create the flow. former may
// be nil. Where a flow could be either, it is stale: one that was legal is made
// again, equal, by its next packet. That is not so for a flow with another of
// our addresses, or another program's, as its source; such a flow has to be
// wrong to be stale.
func (x *Index) Judge(f Flow, former Former) Verdict {
	if former == nil {
		former = noFormer{}
	}
	if zone := f.Orig.Zone; !x.knowsTenant(zone) && former.Tenant(zone) {
		return Orphaned
	}
	if v := x.judgeDestination(f, former); v != Legal {
		return v
	}
	return x.judgeSource(f, former)
}

type noFormer struct{}

func (noFormer) Public(netip.Addr) bool               { return false }
func (noFormer) StoodFor(netip.Addr, netip.Addr) bool { return false }
func (noFormer) Tenant(uint16) bool                   { return false }

// judgeDestination looks at what was dialled and where it went.
func (x *Index) judgeDestination(f Flow, former Former) Verdict {
	public, translated := f.Orig.Dst, f.destinationTranslated()
	rec := x.address(public)
	if rec == nil && !x.isShard(public) {
		// An untranslated flow is what the state makes of a foreign address.
		if translated && former.Public(public) && former.StoodFor(public, f.Reply.Src) {
			return Released
		}
		return Legal
	}
	if rec == nil {
		rec = &nat.Address{Public: public}
	}
	switch {
	case x.isShard(public) && x.host.Shard.Echo && translated && isEchoRequest(f):
		return Legal // the node answers
	case !rec.Hosted && !rec.Elsewhere:
		return x.judgeAbsent(f, former)
	case !translated:
		return x.judgeDirect(f, rec)
	}
	forward, ok := lookUp(rec, f)
	switch {
	case !ok:
		return Unlisted
	case f.Reply.Src != forward.to.Addr() || f.hasPorts() && f.Reply.SrcPort != forward.to.Port():
		return Moved
	case !admits(forward.sources, f.Orig.Src):
		return Refused
	case !rec.Hosted && (!f.sourceTranslated() || x.backends[f.Orig.Src] != nil):
		return Unmasqueraded
	}
	return Legal
}

// judgeDirect is for untranslated flows to an address that is translated here.
func (x *Index) judgeDirect(f Flow, rec *nat.Address) Verdict {
	// Only what arrives by an uplink is translated for a backend elsewhere; a
	// local dial goes its way, whatever source it leaves with.
	if !rec.Hosted && (x.isLocal(f.Orig.Src) || f.sourceTranslated()) {
		return Legal
	}
	return Direct
}

// judgeAbsent is for flows to an address that nothing is translated for on this
// node: dropped when from an uplink, left to others when dialled locally.
func (x *Index) judgeAbsent(f Flow, former Former) Verdict {
	switch {
	case !f.destinationTranslated():
		return x.judgeDirect(f, &nat.Address{})
	case !x.isLocal(f.Orig.Src):
		return Direct
	case former.StoodFor(f.Orig.Dst, f.Reply.Src):
		return Released
	}
	return Legal
}

func isEchoRequest(f Flow) bool {
	return f.Protocol == protoICMP && f.Orig.ICMPType == echoRequest4 || f.Protocol == protoICMPv6 && f.Orig.ICMPType == echoRequest6
}

type forward struct {
	to      netip.AddrPort
	sources nat.Sources
}

// lookUp finds what the record makes of the flow's first packet.
func lookUp(rec *nat.Address, f Flow) (forward, bool) {
	if rec.Whole.Active() {
		return forward{netip.AddrPortFrom(rec.Whole.Backend, f.Orig.DstPort), rec.Whole.Sources}, true
	}
	if f.Protocol == protoICMP || f.Protocol == protoICMPv6 {
		return forward{netip.AddrPortFrom(rec.Echo.Backend, 0), rec.Echo.Sources}, rec.Echo.Active() && isEchoRequest(f)
	}
	i, ok := slices.BinarySearchFunc(rec.Ports, f, func(p nat.Port, f Flow) int {
		return cmp.Or(cmp.Compare(p.Protocol, f.Protocol), cmp.Compare(p.Port, f.Orig.DstPort))
	})
	if !ok || !rec.Ports[i].Target.IsValid() {
		return forward{}, false
	}
	return forward{rec.Ports[i].Target, rec.Ports[i].Sources}, true
}

// judgeSource looks at who dialled and whom the peer sees.
func (x *Index) judgeSource(f Flow, former Former) Verdict {
	if !f.sourceTranslated() {
		return x.judgeBare(f)
	}
	source, seen := f.Orig.Src, f.Reply.Dst
	rec, shard := x.address(seen), x.isShard(seen)
	attached := rec != nil && slices.Contains(rec.Attached, source)
	// A backend that used the shard before it got an address of its own keeps
	// the connection: its private address is still a source of the shard.
	sheltered := shard && x.isShardSource(source) && !x.isShardSource(f.Orig.Dst) && x.knowsTenant(f.Orig.Zone)
	switch {
	case rec == nil && !shard && former.Public(seen):
		return Released
	case rec == nil && !shard:
		return Legal
	case !attached && !sheltered:
		return Detached
	case x.inCluster(f.Orig.Dst):
		return InCluster
	}
	return Legal
}

// judgeBare is for flows whose source was not translated.
func (x *Index) judgeBare(f Flow) Verdict {
	source, dialled := f.Orig.Src, f.Orig.Dst
	if rec := x.addresses[source]; rec != nil && rec.Hosted && !f.destinationTranslated() {
		return Borrowed
	}
	if x.inCluster(dialled) || staysOnLink(dialled) {
		return Legal
	}
	if x.hasPrimary(source) || x.shardTakes(f) {
		return Bare
	}
	return Legal
}

// shardTakes reports whether a new connection like this one would leave with
// the shard address. What goes to a backend here does not leave by an uplink.
func (x *Index) shardTakes(f Flow) bool {
	source := f.Orig.Src
	return shardAddress(x.host, source).IsValid() && !f.destinationTranslated() &&
		x.isShardSource(source) && !x.isShardSource(f.Orig.Dst) && !x.isMasqueraded(source)
}

// staysOnLink reports whether packets to the address never pass the hook in
// which sources are translated.
func staysOnLink(a netip.Addr) bool {
	return a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsLoopback() || a.IsUnspecified() ||
		a == netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
