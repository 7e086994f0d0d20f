// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/natplane/natplane/nat"
)

// key identifies an element: no set has two with one key.
type key struct {
	set setID
	// addr is the address of a key that starts with one; not set in the plain interval sets.
	addr netip.Addr
	// from and to are the inclusive range of an interval set, for the allowed sets the range of the clients.
	from, to netip.Addr
	proto    nat.Protocol
	port     uint16
	link     string
}

// element is one element of a set or map.
type element struct {
	key
	// value is what a map gives; its port is 0 where the map has none.
	value   netip.AddrPort
	comment string
}

// String returns the element nearly as nft prints it, for messages and tests.
func (e element) String() string {
	var fields []string
	if e.addr.IsValid() {
		fields = append(fields, e.addr.String())
	}
	if e.port != 0 {
		fields = append(fields, strings.ToLower(e.proto.String()), strconv.Itoa(int(e.port)))
	}
	if e.from.IsValid() {
		fields = append(fields, e.from.String()+"-"+e.to.String())
	}
	if e.link != "" {
		fields = append(fields, strconv.Quote(e.link))
	}
	s := "@" + setName(e.set) + " " + strings.Join(fields, " . ")
	if e.comment != "" {
		s += " comment " + strconv.Quote(e.comment)
	}
	switch {
	case e.value.Port() != 0:
		s += fmt.Sprintf(" : %v . %d", e.value.Addr(), e.value.Port())
	case e.value.IsValid():
		s += fmt.Sprintf(" : %v", e.value.Addr())
	}
	return s
}

// addressElements appends what the table holds for a public address, or nothing for a record that cannot be programmed.
func addressElements(es []element, a *nat.Address) ([]element, error) {
	if err := checkAddress(a); err != nil {
		return es, err
	}
	plain := func(s setID, comment string) {
		es = append(es, element{key: key{set: s.of(a.Public), addr: a.Public}, comment: comment})
	}
	owner := comment(a.Owner)
	plain(public4, owner)
	if a.Hosted {
		plain(hosted4, owner)
	}
	if a.Hosted && !a.Whole.Active() {
		plain(listed4, owner)
	}
	if a.Elsewhere {
		plain(elsewhere4, owner)
	}
	es = forwardElements(es, a.Public, whole4, restricted4, &a.Whole)
	es = forwardElements(es, a.Public, echo4, restrictedEcho4, &a.Echo)
	for i := range a.Ports {
		es = portElements(es, a.Public, &a.Ports[i])
	}
	return es, nil
}

func forwardElements(es []element, public netip.Addr, to, restricted setID, f *nat.Forward) []element {
	if !f.Active() {
		return es
	}
	owner := comment(f.Owner)
	k := key{set: to.of(public), addr: public}
	es = append(es, element{key: k, value: netip.AddrPortFrom(f.Backend, 0), comment: owner})
	if !f.Sources.Restricted {
		return es
	}
	k.set = restricted.of(public)
	es = append(es, element{key: k, comment: owner})
	k.set = allowed4.of(public)
	return rangeElements(es, k, f.Sources.Allowed, owner)
}

func portElements(es []element, public netip.Addr, p *nat.Port) []element {
	owner := comment(p.Owner)
	k := key{set: port4.of(public), addr: public, proto: p.Protocol, port: p.Port}
	es = append(es, element{key: k, value: p.Target, comment: owner})
	if !p.Sources.Restricted {
		return es
	}
	k.set = restrictedPort4.of(public)
	es = append(es, element{key: k, comment: owner})
	k.set = allowedPort4.of(public)
	return rangeElements(es, k, p.Sources.Allowed, owner)
}

func rangeElements(es []element, k key, ranges []nat.Range, comment string) []element {
	for _, r := range ranges {
		k.from, k.to = r.From, r.To
		es = append(es, element{key: k, comment: comment})
	}
	return es
}

// backendElements appends what the table holds for a local backend.
func backendElements(es []element, b *nat.Backend) ([]element, error) {
	if err := checkBackend(b); err != nil {
		return es, err
	}
	es = append(es, element{key: key{set: managed4.of(b.Addr), addr: b.Addr}, comment: comment(b.Owner)})
	if b.Primary.IsValid() {
		es = append(es, element{key: key{set: egress4.of(b.Addr), addr: b.Addr},
			value: netip.AddrPortFrom(b.Primary, 0), comment: comment(b.PrimaryOwner)})
	}
	return es, nil
}

// hostElements appends what the table holds for the node as a whole. Unlike the other records this one is judged range by
// range: without its good ranges in-cluster traffic would be translated.
func hostElements(es []element, h *nat.Host) ([]element, []error) {
	var errs []error
	for _, part := range []struct {
		set    setID
		ranges []nat.NamedRange
	}{{cluster4, h.Cluster}, {masquerade4, h.Masquerade}, {shardSources4, h.ShardSources}} {
		before := make(map[bool]nat.Range, 2)
		for _, r := range part.ranges {
			if err := checkRange(r.Range, r.From.Is4(), before[r.From.Is4()]); err != nil {
				errs = append(errs, fmt.Errorf("node range for %s: %w", setName(part.set.of(r.From)), err))
				continue
			}
			before[r.From.Is4()] = r.Range
			es = append(es, element{key: key{set: part.set.of(r.From), from: r.From, to: r.To}, comment: cleanComment(r.Reason)})
		}
	}
	es, errs = linkElements(es, errs, uplinkIf, h.Uplinks)
	es, errs = linkElements(es, errs, workloadIf, h.Workloads)
	for _, t := range h.Tenants {
		if !t.Outside { // closed ones are there before they open
			es, errs = linkElements(es, errs, tenantIf, []string{t.Interface})
		}
	}
	es, errs = nodeElements(es, errs, h)
	for _, s := range h.IdleShards {
		if err := checkAddr(s.Addr, s.Addr.Is4()); err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", s.Owner, err))
			continue
		}
		es = append(es, element{key: key{set: public4.of(s.Addr), addr: s.Addr}, comment: comment(s.Owner)})
	}
	return shardElements(es, errs, h)
}

// nodeElements: the kernel's own choice of a source may be any address of the node, a public one on the loopback interface included.
func nodeElements(es []element, errs []error, h *nat.Host) ([]element, []error) {
	for i, a := range []netip.Addr{h.IPv4, h.IPv6} {
		if !a.IsValid() {
			continue
		}
		if err := checkAddr(a, i == 0); err != nil {
			errs = append(errs, fmt.Errorf("node address: %w", err))
			continue
		}
		for _, name := range h.Uplinks {
			if checkLink(name) == nil {
				es = append(es, element{key: key{set: node4.of(a), link: name}, value: netip.AddrPortFrom(a, 0)})
			}
		}
	}
	return es, errs
}

func linkElements(es []element, errs []error, s setID, names []string) ([]element, []error) {
	for _, name := range names {
		if err := checkLink(name); err != nil {
			errs = append(errs, err)
			continue
		}
		es = append(es, element{key: key{set: s, link: name}})
	}
	return es, errs
}

// shardElements: an address of the shard also is public and hosted, so that what nobody asked for is dropped.
func shardElements(es []element, errs []error, h *nat.Host) ([]element, []error) {
	owner := comment(h.Shard.Owner)
	for i, a := range []netip.Addr{h.Shard.IPv4, h.Shard.IPv6} {
		if !a.IsValid() {
			continue
		}
		if err := checkAddr(a, i == 0); err != nil {
			errs = append(errs, fmt.Errorf("shard %s: %w", h.Shard.Owner, err))
			continue
		}
		sets := []setID{public4, hosted4}
		if h.Shard.Echo {
			sets = append(sets, shardEcho4)
		}
		for _, s := range sets {
			es = append(es, element{key: key{set: s.of(a), addr: a}, comment: owner})
		}
		for _, name := range h.Uplinks {
			if checkLink(name) == nil {
				es = append(es, element{key: key{set: shard4.of(a), link: name}, value: netip.AddrPortFrom(a, 0), comment: owner})
			}
		}
	}
	return es, errs
}

// maxComment is the longest comment that nft reads back, in bytes (NFTNL_UDATA_COMMENT_MAXLEN).
const maxComment = 128

func comment(k nat.Key) string {
	if k == (nat.Key{}) {
		return ""
	}
	return cleanComment(k.String())
}

// cleanComment makes s a comment that nft can print and load again: it knows no way to quote a quotation mark.
func cleanComment(s string) string {
	if len(s) <= maxComment && isPlain(s) {
		return s
	}
	s = strings.Map(func(r rune) rune {
		if r == '"' || r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, s)
	if len(s) <= maxComment {
		return s
	}
	end := maxComment
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// isPlain is true for printable ASCII without quotation marks, which nearly every comment is.
func isPlain(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' || s[i] == '"' {
			return false
		}
	}
	return true
}
