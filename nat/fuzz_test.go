// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// FuzzParseAddress: whatever is accepted is one plain unicast address, and is written back as it is.
func FuzzParseAddress(f *testing.F) {
	for _, s := range append(badAddresses(), "10.0.0.10", "2001:db8::1", "2001:DB8:0::1") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			require.False(t, a.IsValid())
			return
		}
		require.True(t, a.IsValid() && a.Zone() == "" && !a.Is4In6())
		require.False(t, a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast())
		again, err := ParseAddress(a.String())
		require.NoError(t, err)
		require.Equal(t, a, again)
	})
}

// FuzzSources: what the entries admit, one by one, is what the merged ranges admit, and a client of neither is not admitted.
func FuzzSources(f *testing.F) {
	f.Add("198.51.100.0/24,198.51.100.128/25", "198.51.100.255")
	f.Add("0.0.0.0/0", "::1")
	f.Add("255.255.255.255/32,0.0.0.0/0,nonsense", "255.255.255.255")
	f.Add("128.0.0.0/1,::/1,8000::/1", "ffff::1")
	f.Add(" 10.0.0.0/8,::ffff:10.0.0.0/104,", "10.255.255.255")
	f.Fuzz(func(t *testing.T, list, client string) {
		a, err := netip.ParseAddr(client)
		if err != nil || a.Is4In6() || a.Zone() != "" {
			return
		}
		entries := strings.Split(list, ",")
		sources, problems := parseSources(entries)
		want, bad := false, 0
		for _, e := range entries {
			p, err := netip.ParsePrefix(strings.TrimSpace(e))
			if err != nil || p.Addr().Is4In6() {
				bad++
				continue
			}
			want = want || p.Contains(a)
		}
		require.Equal(t, want, sources[familyOf(a)].Admits(a), "%s in %q", a, list)
		require.Len(t, problems, bad)
		checkSources(t, addr("0.0.0.0"), sources[ipv4])
		checkSources(t, addr("::"), sources[ipv6])
	})
}

// FuzzBuild makes objects from bytes: no input may panic, break an invariant or give two answers.
func FuzzBuild(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x02\x01\x00\x00\x01\x02\x00\x00\x01"))
	f.Add([]byte("\x00\x07\x01\x02\x00\x01\x03\x02\x01\x10\x00\x01\x02\x10\x11\x00\x03\x01\x00\x00"))
	f.Add([]byte(strings.Repeat("\x00\x05\x03\x01\x01\x02\x03\x04\x02\x09\x03\x01", 6)))
	f.Add([]byte("natplane"))
	f.Fuzz(func(t *testing.T, data []byte) {
		all := objectsOf(data)
		c := testConfig("node-a")
		c.PublicCIDRs = prefixes("203.0.113.0/24", "2001:db8::/32")
		s, v := Build(c, all, Facts{})
		checkInvariants(t, s)
		e := NewEngine(c, programmed(s))
		out := e.Apply(all, Facts{})
		require.True(t, s.Equal(e.State()))
		require.Equal(t, len(v), len(e.Verdicts()))
		require.Len(t, out.Delta.Addresses, len(s.Addresses))
		requireSilent(t, e.Apply(all, Facts{}))
		require.Equal(t, c.Node, e.Plan().Node)
	})
}

// objectsOf reads four bytes per object: what it is, which one, and two of its properties.
func objectsOf(data []byte) Objects {
	addresses := []string{"203.0.113.1", "203.0.113.2", "2001:db8::1", "2001:db8::2", "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2", "", "bad", "0.0.0.0", "::ffff:10.0.0.1"}
	names := []string{"a/x", "a/y", "b/x"}
	nodes := []string{"node-a", "node-b", ""}
	all := NewObjects()
	for ; len(data) >= 4; data = data[4:] {
		name, p, q := names[int(data[1])%len(names)], int(data[2]), int(data[3])
		switch data[0] % 5 {
		case 0:
			s := svc(name).age(p%4).ip(addresses[p%len(addresses)], addresses[q%len(addresses)]).ports("80")
			s.Annotations[AnnotationWholeIP] = []string{"true", "false", ""}[q%3]
			s.Annotations[AnnotationPrimary] = []string{"true", "false", ""}[p%3]
			s.Spec.Ports[0].Port = int32(p * q)
			if p%2 == 0 {
				s.spread()
			}
			s.addTo(all)
		case 1:
			b := slice(name, "s"+string(rune('0'+p%3)), addresses[p%len(addresses)]+"@"+nodes[q%3], addresses[q%len(addresses)]+"@node-a!serving")
			b.AddressType = []discoveryv1.AddressType{"IPv4", "IPv6", "FQDN", ""}[q%4]
			b.serves("80")
			b.Ports[0].Port = ptr(int32(q - 1))
			b.addTo(all)
		case 2:
			pod(name+string(rune('0'+q%3)), addresses[p%len(addresses)], addresses[q%len(addresses)]).on(nodes[q%2]).phase(corev1.PodRunning).addTo(all)
		case 3:
			node(nodes[p%2], addresses[q%len(addresses)]).pods(addresses[p%len(addresses)] + "/30").addTo(all)
		case 4:
			b := slice(name, "empty")
			b.Endpoints = []discoveryv1.Endpoint{{}, {Addresses: []string{}}}
			b.Ports = []discoveryv1.EndpointPort{{}, {Port: ptr(int32(p))}}
			b.addTo(all)
		}
	}
	return all
}
