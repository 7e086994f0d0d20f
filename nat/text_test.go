// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// Short text forms of a State and its verdicts:
//
//	203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10     address, owner, what it forwards, attached backends (present: hosted)
//	203.0.113.11 a/db elsewhere TCP80>10.0.0.20:8080
//	203.0.113.12 a/x guarded                           nothing is forwarded
//	10.0.0.10 leaves 203.0.113.10 of a/web             a backend and its primary
//	a/web: Programmed                                  a verdict

func describe(s State, verdicts []Verdict) string {
	var lines []string
	for _, a := range s.Addresses {
		lines = append(lines, describeAddress(a))
	}
	for _, b := range s.Backends {
		line := fmt.Sprintf("%s leaves nowhere", b.Addr)
		if b.Primary.IsValid() {
			line = fmt.Sprintf("%s leaves %s of %s", b.Addr, b.Primary, b.PrimaryOwner)
		}
		lines = append(lines, line)
	}
	for _, v := range verdicts {
		lines = append(lines, fmt.Sprintf("%s: %s", v.Key(), v.Reason))
	}
	return strings.Join(lines, "\n")
}

func describeAddress(a Address) string {
	words := []string{a.Public.String(), a.Owner.String()}
	if a.Elsewhere {
		words = append(words, "elsewhere")
	}
	forward := func(what string, to any, owner Key, s Sources) {
		word := fmt.Sprintf("%s>%v", what, to)
		if owner != a.Owner {
			word += "(" + owner.String() + ")"
		}
		words = append(words, word+describeSources(s))
	}
	if a.Whole.Active() {
		forward("whole", a.Whole.Backend, a.Whole.Owner, a.Whole.Sources)
	}
	if a.Echo.Active() {
		forward("echo", a.Echo.Backend, a.Echo.Owner, a.Echo.Sources)
	}
	for _, p := range a.Ports {
		forward(fmt.Sprintf("%s%d", p.Protocol, p.Port), p.Target, p.Owner, p.Sources)
	}
	if len(words) == 2 {
		words = append(words, "guarded")
	}
	for _, b := range a.Attached {
		words = append(words, "@"+b.String())
	}
	return strings.Join(words, " ")
}

func describeSources(s Sources) string {
	if !s.Restricted {
		return ""
	}
	var list []string
	for _, r := range s.Allowed {
		list = append(list, r.String())
	}
	return "{" + strings.Join(list, ",") + "}"
}

func testConfig(node string) Config {
	return Config{Node: node, ProxyNames: DefaultProxyNames()}
}

// row is one line of a table: objects, and everything that a node comes to.
type row struct {
	name string
	objs []object
	want string
	// node is node-a unless told.
	node string
	// config changes the configuration.
	config func(*Config)
	facts  Facts
}

func (r row) build(t *testing.T) (State, []Verdict) {
	t.Helper()
	c := testConfig("node-a")
	if r.node != "" {
		c.Node = r.node
	}
	if r.config != nil {
		r.config(&c)
	}
	all := objects(r.objs...)
	s, v := Build(c, all, r.facts)
	checkInvariants(t, s)
	return s, v
}

func runRows(t *testing.T, rows []row) {
	t.Helper()
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			s, v := r.build(t)
			requireText(t, r.want, describe(s, v))
		})
	}
}

// requireText compares line by line, without regard to indentation.
func requireText(t *testing.T, want, got string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(want) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if diff := cmp.Diff(lines, splitLines(got)); diff != "" {
		require.Fail(t, "unexpected state (-want +got):\n"+diff)
	}
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// plan builds the State and verdicts of objects on a node.
func plan(t *testing.T, node string, objs ...object) (State, []Verdict) {
	t.Helper()
	return row{node: node, objs: objs}.build(t)
}

func verdictOf(t *testing.T, verdicts []Verdict, name string) Verdict {
	t.Helper()
	for _, v := range verdicts {
		if v.Key() == keyOf(name) {
			return v
		}
	}
	require.Fail(t, "no verdict on "+name)
	return Verdict{}
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefixes(list ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range list {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, s := range list {
		all = append(all, addr(s))
	}
	return all
}
