// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Contains reports whether a lies in the range.
func (r Range) Contains(a netip.Addr) bool {
	return r.From.Is4() == a.Is4() && r.From.Compare(a) <= 0 && a.Compare(r.To) <= 0
}

// String shows a range as a prefix or a single address where it is one.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	for bits := 0; bits < r.From.BitLen(); bits++ {
		if p := netip.PrefixFrom(r.From, bits); p.Masked().Addr() == r.From && RangeOf(p) == r {
			return p.String()
		}
	}
	return r.From.String() + "-" + r.To.String()
}

// RangeOf returns the addresses of a prefix; an invalid one has none.
func RangeOf(p netip.Prefix) Range {
	if !p.IsValid() {
		return Range{}
	}
	from := p.Masked().Addr()
	b := from.AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	to, _ := netip.AddrFromSlice(b)
	return Range{From: from, To: to}
}

func compareRanges(a, b Range) int {
	return cmp.Or(a.From.Compare(b.From), b.To.Compare(a.To))
}

// mergeRanges returns the same addresses in as few ranges as possible, sorted: neither the kernel's interval sets nor the equality of
// two states can bear overlaps.
func mergeRanges(in []Range) []Range {
	if len(in) == 0 {
		return nil
	}
	in = slices.Clone(in)
	slices.SortFunc(in, compareRanges)
	out := in[:1]
	for _, r := range in[1:] {
		last := &out[len(out)-1]
		adjacent := last.To.Next() == r.From // Next of the last address is invalid, which equals nothing valid
		if last.From.Is4() == r.From.Is4() && (r.From.Compare(last.To) <= 0 || adjacent) {
			if last.To.Less(r.To) {
				last.To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// mergeNamed drops what another range covers and joins what overlaps; ranges that only touch stay apart, so that each keeps its reason.
func mergeNamed(in []NamedRange) []NamedRange {
	in = slices.Clone(in)
	slices.SortFunc(in, func(a, b NamedRange) int {
		return cmp.Or(compareRanges(a.Range, b.Range), strings.Compare(a.Reason, b.Reason))
	})
	var out []NamedRange
	for _, r := range in {
		if n := len(out); n > 0 {
			last := &out[n-1]
			if last.From.Is4() == r.From.Is4() && r.From.Compare(last.To) <= 0 {
				if last.To.Less(r.To) {
					last.To = r.To
					last.Reason += ", " + r.Reason
				}
				continue
			}
		}
		out = append(out, r)
	}
	return out
}

// findRange returns the range of a sorted, non-overlapping list that holds the address.
func findRange(sorted []NamedRange, a netip.Addr) (NamedRange, bool) {
	i, found := slices.BinarySearchFunc(sorted, a, func(r NamedRange, a netip.Addr) int { return r.From.Compare(a) })
	if !found {
		i--
	}
	if i >= 0 && sorted[i].Contains(a) {
		return sorted[i], true
	}
	return NamedRange{}, false
}

// parseSources reads spec.loadBalancerSourceRanges for both families. It fails closed: once ranges are given, a family without any and
// an entry that cannot be read admit nobody.
func parseSources(specified []string) (sources [2]Sources, problems []string) {
	if len(specified) == 0 {
		return sources, nil
	}
	var ranges [2][]Range
	for _, s := range specified {
		p, err := netip.ParsePrefix(strings.TrimSpace(s))
		if err != nil || p.Addr().Is4In6() {
			problems = append(problems, fmt.Sprintf("loadBalancerSourceRanges entry %q is not a prefix and admits nobody", s))
			continue
		}
		f := familyOf(p.Addr())
		ranges[f] = append(ranges[f], RangeOf(p))
	}
	for _, f := range families {
		merged := mergeRanges(ranges[f])
		if everything := len(merged) == 1 && merged[0].From.IsUnspecified() && !merged[0].To.Next().IsValid(); everything {
			continue
		}
		sources[f] = Sources{Restricted: true, Allowed: merged}
	}
	return sources, problems
}

// Admits reports whether a client may connect.
func (s Sources) Admits(client netip.Addr) bool {
	if !s.Restricted {
		return true
	}
	i, found := slices.BinarySearchFunc(s.Allowed, client, func(r Range, a netip.Addr) int { return r.From.Compare(a) })
	if !found {
		i--
	}
	return i >= 0 && s.Allowed[i].Contains(client)
}
