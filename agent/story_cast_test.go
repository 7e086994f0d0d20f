// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// cast are flows that some state or other would create, by a name that says what they are. Each has a port of its own, so that all of
// them may be in the kernel together.
type cast map[string]conntrack.Flow

// newCast makes the flows of one family: each of the public addresses with each of the machines.
func newCast(f testenv.Family, topo *testenv.Topology, publics []int) cast {
	c, port := cast{}, uint16(10000)
	clients := map[string]netip.Addr{"ext": topo.Ext.Addr(f), "ext2": topo.Ext2.Addr(f)}
	machines := map[string]netip.Addr{"web": topo.Web.Addr(f), "db": topo.DB.Addr(f), "pod": topo.Pod.Addr(f), "mail": topo.Mail.Addr(f)}
	add := func(protocol nat.Protocol, src, dst, replySrc, replyDst netip.Addr, dialled, target uint16, format string, args ...any) {
		port++
		flow := conntrack.Flow{
			Protocol: protocol,
			Orig:     conntrack.Tuple{Src: src, SrcPort: port, Dst: dst, DstPort: dialled},
			Reply:    conntrack.Tuple{Src: replySrc, SrcPort: target, Dst: replyDst, DstPort: port},
		}
		if protocol == unix.IPPROTO_ICMP {
			flow = echoFlow(f, flow)
		}
		c[fmt.Sprintf("%s: %s", f, fmt.Sprintf(format, args...))] = flow
	}
	for _, last := range publics {
		p := public(f, last)
		for who, client := range sortedMap(clients) {
			add(nat.UDP, client, p, p, client, 53, 53, "%s to .%d udp 53, not translated", who, last)
			for name, m := range sortedMap(machines) {
				add(nat.TCP, client, p, m, client, 80, 80, "%s to .%d tcp 80 at %s", who, last, name)
				add(nat.TCP, client, p, m, client, 443, 8443, "%s to .%d tcp 443 at %s 8443", who, last, name)
				add(nat.UDP, client, p, m, client, 53, 53, "%s to .%d udp 53 at %s", who, last, name)
				add(unix.IPPROTO_ICMP, client, p, m, client, 0, 0, "%s to .%d echo at %s", who, last, name)
			}
		}
		for name, m := range sortedMap(machines) {
			add(nat.TCP, m, clients["ext"], clients["ext"], p, 25, 25, "%s as .%d to ext tcp 25", name, last)
			add(nat.TCP, m, far(f), far(f), p, 25, 25, "%s as .%d to the far range tcp 25", name, last)
		}
	}
	for name, m := range sortedMap(machines) {
		add(nat.UDP, m, clients["ext"], clients["ext"], m, 25, 25, "%s as itself to ext udp 25", name)
		add(nat.TCP, m, clients["ext"], clients["ext"], topo.NodeA.Addr(f), 25, 25, "%s as the node to ext tcp 25", name)
	}
	return c
}

// far is an address of a range that belongs to the cluster at times.
func far(f testenv.Family) netip.Addr {
	if f == testenv.IPv6 {
		return netip.MustParseAddr("fd00:10:250::9")
	}
	return netip.MustParseAddr("10.250.0.9")
}

// echoFlow is an echo request in place of a flow with ports; its client's port is the identifier.
func echoFlow(f testenv.Family, flow conntrack.Flow) conntrack.Flow {
	request, reply := uint8(8), uint8(0)
	if f == testenv.IPv6 {
		flow.Protocol, request, reply = unix.IPPROTO_ICMPV6, 128, 129
	}
	id := flow.Orig.SrcPort
	flow.Orig.SrcPort, flow.Orig.DstPort, flow.Orig.ICMPType = id, 0, request
	flow.Reply.SrcPort, flow.Reply.DstPort, flow.Reply.ICMPType = id, 0, reply
	return flow
}

// sortedMap ranges in the order of the keys, so that ports do not depend on luck.
func sortedMap[V any](m map[string]V) func(func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// once is a Former for which every address of the documentation range was public and stood for everybody.
type once struct{}

func (once) Public(a netip.Addr) bool {
	return netip.MustParsePrefix("203.0.113.0/24").Contains(a) || netip.MustParsePrefix("2001:db8:203::/64").Contains(a)
}
func (o once) StoodFor(public, _ netip.Addr) bool { return o.Public(public) }
func (once) Tenant(uint16) bool                   { return false }

// legal lists the flows of the cast that a state would create, sorted.
func (c cast) legal(state nat.State) []string {
	index := conntrack.NewIndex(state)
	var names []string
	for name, f := range c {
		if index.Judge(f, once{}) == conntrack.Legal {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// enter puts flows of the cast into the kernel.
func (c cast) enter(t testing.TB, ns *testenv.NetNS, names []string) {
	t.Helper()
	var flows []conntrack.Flow
	for _, name := range names {
		flows = append(flows, c[name])
	}
	insert(t, ns, flows...)
}

// alive lists the flows of the cast that the kernel holds, with their ids.
func (c cast) alive(t testing.TB, ns *testenv.NetNS) map[string]uint32 {
	t.Helper()
	type identity struct {
		protocol    nat.Protocol
		orig, reply conntrack.Tuple
	}
	known := map[identity]uint32{}
	for id, f := range allFlows(t, ns) {
		known[identity{f.Protocol, f.Orig, f.Reply}] = id
	}
	found := map[string]uint32{}
	for name, f := range c {
		if id, ok := known[identity{f.Protocol, f.Orig, f.Reply}]; ok {
			found[name] = id
		}
	}
	return found
}

// elements lists what the sets and maps of our table hold, one to a line, sorted by set and key.
func elements(t testing.TB, ns *testenv.NetNS) string {
	t.Helper()
	return elementsOf(ns.Nft(t, "list", "table", "inet", "natplane"))
}

func elementsOf(text string) string {
	var lines []string
	for _, set := range regexp.MustCompile(`(?s)\n\t(?:set|map) (\w+) \{\n(.*?)\n\t\}`).FindAllStringSubmatch(text, -1) {
		_, list, found := strings.Cut(set[2], "elements = {")
		if !found || strings.HasPrefix(set[1], "parted") { // which are empty a moment after the audit
			continue
		}
		for _, e := range splitElements(strings.TrimSuffix(strings.TrimSpace(list), "}")) {
			lines = append(lines, set[1]+" "+e)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// splitElements splits at the commas outside of comments.
func splitElements(list string) []string {
	quoted := false
	parts := strings.FieldsFunc(list, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return r == ',' && !quoted
	})
	for i := range parts {
		parts[i] = strings.Join(strings.Fields(parts[i]), " ")
	}
	return parts
}
