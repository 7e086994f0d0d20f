// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRangeOf(t *testing.T) {
	for prefix, want := range map[string]string{
		"0.0.0.0/0":           "0.0.0.0 255.255.255.255",
		"::/0":                ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
		"203.0.113.77/24":     "203.0.113.0 203.0.113.255",
		"203.0.113.77/25":     "203.0.113.0 203.0.113.127",
		"203.0.113.77/31":     "203.0.113.76 203.0.113.77",
		"203.0.113.77/32":     "203.0.113.77 203.0.113.77",
		"128.0.0.0/1":         "128.0.0.0 255.255.255.255",
		"2001:db8::1/127":     "2001:db8:: 2001:db8::1",
		"2001:db8::1/128":     "2001:db8::1 2001:db8::1",
		"2001:db8:ffff::1/33": "2001:db8:8000:: 2001:db8:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		r := RangeOf(netip.MustParsePrefix(prefix))
		require.Equal(t, want, r.From.String()+" "+r.To.String(), prefix)
		require.True(t, r.Contains(r.From) && r.Contains(r.To))
		require.False(t, r.Contains(r.From.Prev()) || r.Contains(r.To.Next()))
	}
	require.Equal(t, Range{}, RangeOf(netip.Prefix{}), "no prefix, no addresses")
}

func TestRangeString(t *testing.T) {
	for text, want := range map[string]string{
		"203.0.113.0-203.0.113.255":                  "203.0.113.0/24",
		"203.0.113.1-203.0.113.1":                    "203.0.113.1",
		"203.0.113.1-203.0.113.2":                    "203.0.113.1-203.0.113.2",
		"203.0.113.0-203.0.113.2":                    "203.0.113.0-203.0.113.2",
		"0.0.0.0-255.255.255.255":                    "0.0.0.0/0",
		"::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff": "::/0",
		"2001:db8::-2001:db8::1":                     "2001:db8::/127",
	} {
		require.Equal(t, want, parseRange(text).String())
	}
}

func parseRange(text string) Range {
	from, to, _ := strings.Cut(text, "-")
	if to == "" {
		to = from
	}
	return Range{addr(from), addr(to)}
}

func parseRanges(text string) []Range {
	var list []Range
	for _, part := range strings.Fields(text) {
		list = append(list, parseRange(part))
	}
	return list
}

func TestMergeRanges(t *testing.T) {
	for in, want := range map[string]string{
		"":                           "",
		"10.0.0.1":                   "10.0.0.1",
		"10.0.0.1 10.0.0.1":          "10.0.0.1",
		"10.0.0.2 10.0.0.1":          "10.0.0.1-10.0.0.2",
		"10.0.0.3 10.0.0.1":          "10.0.0.1 10.0.0.3",
		"10.0.0.0-10.0.0.9 10.0.0.5": "10.0.0.0-10.0.0.9",
		"10.0.0.5 10.0.0.0-10.0.0.9": "10.0.0.0-10.0.0.9",
		"10.0.0.0-10.0.0.9 10.0.0.0": "10.0.0.0-10.0.0.9",
		"10.0.0.0-10.0.0.5 10.0.0.5-10.0.0.9 10.0.0.10-10.0.0.11": "10.0.0.0-10.0.0.11",
		"10.0.0.0-10.0.0.9 10.0.0.2-10.0.0.3 10.0.0.8-10.0.0.20":  "10.0.0.0-10.0.0.20",
		"255.255.255.254-255.255.255.255 255.255.255.253":         "255.255.255.253-255.255.255.255",
		"255.255.255.255 ::":                         "255.255.255.255 ::",
		":: 255.255.255.255 0.0.0.0":                 "0.0.0.0 255.255.255.255 ::",
		"0.0.0.0-255.255.255.255 10.0.0.1 ::1-::2":   "0.0.0.0-255.255.255.255 ::1-::2",
		"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff ::": ":: ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
	} {
		before := parseRanges(in)
		got := mergeRanges(before)
		require.Equal(t, parseRanges(want), got, in)
		require.Equal(t, parseRanges(in), before, "the input is not written")
	}
}

// TestRangesAgainstEveryAddress compares merging and finding with plain counting in a universe of 256 addresses.
func TestRangesAgainstEveryAddress(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 0))
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{255, 255, 255, byte(i)}) }
	for range 500 {
		var ranges []Range
		var named []NamedRange
		var member [256]bool
		for range rng.IntN(6) {
			p := netip.PrefixFrom(at(rng.IntN(256)), 24+rng.IntN(9))
			r := RangeOf(p)
			ranges = append(ranges, r)
			named = append(named, NamedRange{r, p.String()})
			for i := range member {
				member[i] = member[i] || p.Contains(at(i))
			}
		}
		merged, kept := mergeRanges(ranges), mergeNamed(named)
		s := Sources{Restricted: true, Allowed: merged}
		checkSources(t, at(0), s)
		checkSeparate(t, kept)
		for i, want := range member {
			require.Equal(t, want, s.Admits(at(i)), "%s in %v", at(i), merged)
			r, found := findRange(kept, at(i))
			require.Equal(t, want, found, "%s in %v", at(i), kept)
			require.Equal(t, want, r.Contains(at(i)))
		}
		require.False(t, s.Admits(addr("::")) || s.Admits(netip.Addr{}), "another family")
	}
}

func TestMergeNamedKeepsReasons(t *testing.T) {
	list := []NamedRange{
		{parseRange("10.0.0.0-10.0.0.9"), "b"}, {parseRange("10.0.0.0-10.0.0.9"), "a"}, {parseRange("10.0.0.4"), "inner"},
		{parseRange("10.0.0.10"), "neighbour"}, {parseRange("10.0.1.0-10.0.1.5"), "left"}, {parseRange("10.0.1.5-10.0.1.9"), "right"},
		{parseRange("255.255.255.255"), "last"}, {parseRange("::"), "first"},
	}
	require.Equal(t, []string{"10.0.0.0-10.0.0.9 a", "10.0.0.10 neighbour", "10.0.1.0-10.0.1.9 left, right", "255.255.255.255 last", ":: first"},
		hostText(mergeNamed(list)))
	require.Empty(t, mergeNamed(nil))
	_, found := findRange(nil, addr("10.0.0.1"))
	require.False(t, found)
}

// TestSources is R15: every row gives the entries, what is admitted in each family ("all", "nobody" or ranges) and what is reported.
func TestSources(t *testing.T) {
	for _, c := range []struct {
		name, entries, four, six string
		problems                 int
	}{
		{"none", "", "all", "all", 0},
		{"one", "198.51.100.0/24", "198.51.100.0/24", "nobody", 0},
		{"both families", "198.51.100.8/32 2001:db8:e::8/128", "198.51.100.8", "2001:db8:e::8", 0},
		{"only IPv6", "2001:db8:e::/64", "nobody", "2001:db8:e::/64", 0},
		{"host bits", "198.51.100.77/24", "198.51.100.0/24", "nobody", 0},
		{"overlapping", "198.51.100.0/24 198.51.100.128/25 198.51.0.0/16", "198.51.0.0/16", "nobody", 0},
		{"adjacent", "198.51.100.0/25 198.51.100.128/25 198.51.101.0/32", "198.51.100.0-198.51.101.0", "nobody", 0},
		{"everybody of IPv4", "0.0.0.0/0", "all", "nobody", 0},
		{"everybody in halves", "128.0.0.0/1 0.0.0.0/1", "all", "nobody", 0},
		{"everybody", "0.0.0.0/0 ::/0", "all", "all", 0},
		{"nearly everybody", "128.0.0.0/1 0.0.0.0/2 64.0.0.0/3", "0.0.0.0-95.255.255.255,128.0.0.0/1", "nobody", 0},
		{"last address", "255.255.255.255/32 255.255.255.254/32", "255.255.255.254/31", "nobody", 0},
		{"last address of IPv6", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", "nobody", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 0},
		{"bad beside good", "198.51.100.0/24 nonsense", "198.51.100.0/24", "nobody", 1},
		{"only bad", "nonsense", "nobody", "nobody", 1},
		{"address without a length", "198.51.100.8", "nobody", "nobody", 1},
		{"leading zeros", "198.51.100.008/32", "nobody", "nobody", 1},
		{"length too long", "198.51.100.0/33", "nobody", "nobody", 1},
		{"v4-mapped", "::ffff:198.51.100.0/120", "nobody", "nobody", 1},
		{"zone", "fe80::1%eth0/64", "nobody", "nobody", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			entries := strings.Fields(c.entries)
			sources, problems := parseSources(entries)
			require.Len(t, problems, c.problems)
			require.Equal(t, [2]string{c.four, c.six}, [2]string{sourcesText(sources[ipv4]), sourcesText(sources[ipv6])})
			s, _ := plan(t, "node-a", svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10").sources(entries...), vm("a/web", "10.0.0.10", "fd00::10"))
			require.Equal(t, [2]string{c.four, c.six}, [2]string{sourcesText(s.Addresses[0].Whole.Sources), sourcesText(s.Addresses[1].Whole.Sources)})
		})
	}
	padded, problems := parseSources([]string{" 198.51.100.0/24\t"})
	require.Empty(t, problems, "the API server admits spaces around an entry")
	require.Equal(t, "198.51.100.0/24", sourcesText(padded[ipv4]))
	empty, problems := parseSources([]string{""})
	require.Len(t, problems, 1)
	require.Equal(t, "nobody", sourcesText(empty[ipv4]))
}

func sourcesText(s Sources) string {
	switch {
	case !s.Restricted:
		return "all"
	case len(s.Allowed) == 0:
		return "nobody"
	}
	return strings.Trim(describeSources(s), "{}")
}
