// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwnership is R7: a machine each behind a/one (10.0.0.1), b/two (10.0.0.2) and c/three (10.0.0.3), one public address.
func TestOwnership(t *testing.T) {
	machines := []object{vm("a/one", "10.0.0.1").serves("80", "https:443"), vm("b/two", "10.0.0.2").serves("80", "https:443"),
		vm("c/three", "10.0.0.3").serves("80", "https:443")}
	at := func(name string, age int) svcBuilder { return svc(name).ip("203.0.113.10").age(age) }
	with := func(objs ...object) []object { return append(objs, machines...) }
	runRows(t, []row{
		{name: "whole: the older", objs: with(at("a/one", 1).whole(), at("b/two", 2).whole()), want: `
			203.0.113.10 b/two whole>10.0.0.2 @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: AddressConflict
			b/two: Programmed`},
		{name: "whole: age ties go to the namespace", objs: with(at("a/one", 1).whole(), at("b/two", 1).whole()), want: `
			203.0.113.10 a/one whole>10.0.0.1 @10.0.0.1
			10.0.0.1 leaves 203.0.113.10 of a/one
			a/one: Programmed
			b/two: AddressConflict`},
		{name: "whole: then to the name", objs: []object{svc("a/x").whole().ip("203.0.113.10"), svc("a/b").whole().ip("203.0.113.10")}, want: `
			203.0.113.10 a/b guarded
			a/b: NoBackend
			a/x: AddressConflict`},
		{name: "namespaces are compared before names", objs: []object{svc("a-b/c").whole().ip("203.0.113.10"), svc("a/z").whole().ip("203.0.113.10")}, want: `
			203.0.113.10 a/z guarded
			a/z: NoBackend
			a-b/c: AddressConflict`},
		{name: "older whole without a backend keeps it", objs: []object{at("a/one", 1).whole(), machines[0], at("b/two", 2).whole()}, want: `
			203.0.113.10 b/two guarded
			a/one: AddressConflict
			b/two: NoBackend`},
		{name: "older ports shut out a whole", objs: with(at("a/one", 2).ports("80"), at("b/two", 1).whole()), want: `
			203.0.113.10 a/one TCP80>10.0.0.1:80 @10.0.0.1
			10.0.0.1 leaves 203.0.113.10 of a/one
			a/one: Programmed
			b/two: AddressConflict`},
		{name: "older whole shuts out ports", objs: with(at("a/one", 1).ports("80").icmp(), at("b/two", 2).whole()), want: `
			203.0.113.10 b/two whole>10.0.0.2 @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: AddressConflict
			b/two: Programmed`},
		{name: "ports, whole, ports", objs: with(at("a/one", 3).ports("80"), at("b/two", 2).whole(), at("c/three", 1).ports("https:443")), want: `
			203.0.113.10 a/one TCP80>10.0.0.1:80 TCP443>10.0.0.3:443(c/three) @10.0.0.1 @10.0.0.3
			10.0.0.1 leaves 203.0.113.10 of a/one
			10.0.0.3 leaves nowhere
			a/one: Programmed
			b/two: AddressConflict
			c/three: Programmed`},
		{name: "different ports share", objs: with(at("a/one", 1).ports("80"), at("b/two", 2).ports("https:443")), want: `
			203.0.113.10 b/two TCP80>10.0.0.1:80(a/one) TCP443>10.0.0.2:443 @10.0.0.1 @10.0.0.2
			10.0.0.1 leaves nowhere
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: Programmed
			b/two: Programmed`},
		{name: "same number, different protocol share", objs: []object{at("a/one", 2).ports("53"), at("b/two", 1).ports("53/UDP"),
			vm("a/one", "10.0.0.1").serves("53"), vm("b/two", "10.0.0.2").serves("53/UDP")}, want: `
			203.0.113.10 a/one TCP53>10.0.0.1:53 UDP53>10.0.0.2:53(b/two) @10.0.0.1 @10.0.0.2
			10.0.0.1 leaves 203.0.113.10 of a/one
			10.0.0.2 leaves nowhere
			a/one: Programmed
			b/two: Programmed`},
		{name: "one port lost, the others served", objs: with(at("a/one", 1).ports("80", "https:443"), at("b/two", 2).ports("80")), want: `
			203.0.113.10 b/two TCP80>10.0.0.2:80 TCP443>10.0.0.1:443(a/one) @10.0.0.1 @10.0.0.2
			10.0.0.1 leaves nowhere
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: PortConflict
			b/two: Programmed`},
		{name: "all ports lost: not attached, no echo", objs: with(at("a/one", 1).ports("80").icmp(), at("b/two", 2).ports("http:80")), want: `
			203.0.113.10 b/two guarded @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: PortConflict
			b/two: NoBackend`},
		{name: "a lost port without a target stays lost", objs: with(at("a/one", 1).ports("80"), at("b/two", 2).ports("http:80")), want: `
			203.0.113.10 b/two guarded @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: PortConflict
			b/two: NoBackend`},
		{name: "echo belongs to the oldest that wants it", objs: with(at("a/one", 3).ports("80"), at("b/two", 2).ports("https:443").icmp(), at("c/three", 1).ports("smtp:25").icmp()), want: `
			203.0.113.10 a/one echo>10.0.0.2(b/two) TCP80>10.0.0.1:80 TCP443>10.0.0.2:443(b/two) @10.0.0.1 @10.0.0.2 @10.0.0.3
			10.0.0.1 leaves 203.0.113.10 of a/one
			10.0.0.2 leaves nowhere
			10.0.0.3 leaves nowhere
			a/one: Programmed
			b/two: Programmed
			c/three: NoBackend`},
		{name: "echo is not kept by a Service that holds nothing", objs: with(at("a/one", 3).icmp(), at("b/two", 2).ports("80").icmp()), want: `
			203.0.113.10 b/two echo>10.0.0.2 TCP80>10.0.0.2:80 @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: NoPorts
			b/two: Programmed`},
		{name: "an empty list claims nothing", objs: with(at("a/one", 2), at("b/two", 1).whole()), want: `
			203.0.113.10 b/two whole>10.0.0.2 @10.0.0.2
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: NoPorts
			b/two: Programmed`},
		{name: "conflict on one address of two", objs: with(at("a/one", 1).whole().ip("203.0.113.11"), at("b/two", 2).whole()), want: `
			203.0.113.10 b/two whole>10.0.0.2 @10.0.0.2
			203.0.113.11 a/one whole>10.0.0.1 @10.0.0.1
			10.0.0.1 leaves 203.0.113.11 of a/one
			10.0.0.2 leaves 203.0.113.10 of b/two
			a/one: AddressConflict
			b/two: Programmed`},
		{name: "a Service of another proxy claims nothing", objs: with(at("a/one", 1).whole(), at("b/two", 2).whole().label("other")), want: `
			203.0.113.10 a/one whole>10.0.0.1 @10.0.0.1
			10.0.0.1 leaves 203.0.113.10 of a/one
			a/one: Programmed`},
	})
}

// TestTakeover: the younger takes over when the owner leaves in any way, and gives back when it returns.
func TestTakeover(t *testing.T) {
	old := func() svcBuilder { return svc("b/old").whole().ip("203.0.113.10").age(9) }
	start := []object{svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10"), vm("b/old", "10.0.0.20")}
	lost := `
		203.0.113.10 b/old whole>10.0.0.20 @10.0.0.20
		10.0.0.20 leaves 203.0.113.10 of b/old
		a/web: AddressConflict
		b/old: Programmed`
	gone := NewObjects()
	gone.Services[keyOf("b/old")] = nil
	for name, leave := range map[string]struct {
		batch Objects
		left  string
	}{
		"deleted":              {gone, ""},
		"loses the label":      {objects(old().label("other")), ""},
		"becomes ClusterIP":    {objects(old().kind("ClusterIP")), ""},
		"loses its address":    {objects(svc("b/old").whole().age(9)), "\nb/old: NoAddress"},
		"narrowed to no ports": {objects(old().annotate(AnnotationWholeIP, "false")), "\nb/old: NoPorts"},
		"reborn younger":       {objects(old().age(-1)), "\nb/old: AddressConflict"},
	} {
		t.Run(name, func(t *testing.T) {
			e := NewEngine(testConfig("node-a"), nil)
			e.Apply(objects(append(start, old())...), Facts{})
			requireText(t, lost, describe(e.State(), e.Verdicts()))
			e.Apply(leave.batch, Facts{})
			requireText(t, servedWhole+leave.left, describe(e.State(), e.Verdicts()))
			out := e.Apply(objects(old()), Facts{})
			requireText(t, lost, describe(e.State(), e.Verdicts()))
			require.Len(t, out.Delta.Addresses, 1)
			require.NotNil(t, out.Delta.Addresses[0].Old)
			require.NotNil(t, out.Delta.Addresses[0].New)
			require.Len(t, out.Delta.Backends, 2)
		})
	}
}

// TestEveryNodeDecidesAlike: owners do not depend on where the backends and their Pods are.
func TestEveryNodeDecidesAlike(t *testing.T) {
	objs := []object{
		node("node-a", "198.51.100.1"), node("node-b", "198.51.100.2").pods("10.0.0.0/8"),
		svc("a/one").whole().ip("203.0.113.10", "198.51.100.2").age(1), svc("b/two").whole().ip("203.0.113.10").age(2),
		svc("a/p80").ip("203.0.113.11").ports("80", "81").age(1), svc("b/p80").ip("203.0.113.11").ports("80").age(2),
		svc("c/tie").whole().ip("203.0.113.12"), svc("d/tie").whole().ip("203.0.113.12"),
		svc("e/own").whole().ip("203.0.113.50", "203.0.113.51").age(5), slice("e/own", "e", "203.0.113.50@node-b"),
		svc("f/next").whole().ip("203.0.113.50").age(1),
		vm("a/one", "10.0.0.1"), vm("b/two", "10.0.0.2").on("node-b"), vm("a/p80", "10.0.0.3").serves("80"), vm("b/p80", "10.0.0.4").on("node-b").serves("80"),
	}
	owners := func(on string) map[string]Key {
		s, _ := plan(t, on, objs...)
		all := map[string]Key{}
		for _, a := range s.Addresses {
			all[a.Public.String()] = a.Owner
		}
		return all
	}
	want := map[string]Key{"203.0.113.10": keyOf("b/two"), "203.0.113.11": keyOf("b/p80"), "203.0.113.12": keyOf("c/tie"),
		"203.0.113.50": keyOf("f/next"), "203.0.113.51": keyOf("e/own")}
	for _, on := range []string{"node-a", "node-b", "node-c"} {
		require.Equal(t, want, owners(on), "seen from %s", on)
	}
}
