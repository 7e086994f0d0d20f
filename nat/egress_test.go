// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// egressCase gives Services of one machine (10.0.0.10, fd00::10) and the lines that say where it leaves.
type egressCase struct {
	name string
	objs []object
	want []string
}

func egressCases() []egressCase {
	at := func(name string, age int, ips ...string) svcBuilder { return svc(name).whole().ip(ips...).age(age) }
	four := func(a, owner string) string { return "10.0.0.10 leaves " + a + " of " + owner }
	return []egressCase{
		{"the oldest", []object{at("a/new", 1, "203.0.113.1"), at("a/old", 2, "203.0.113.2")}, []string{four("203.0.113.2", "a/old")}},
		{"age ties go to the name", []object{at("a/x", 1, "203.0.113.1"), at("a/b", 1, "203.0.113.2")}, []string{four("203.0.113.2", "a/b")}},
		{"both methods", []object{at("a/new", 1, "203.0.113.1"), svc("a/old").ip("203.0.113.2").ports("80").age(2)}, []string{four("203.0.113.2", "a/old")}},
		{"lowest by number, not by text", []object{at("a/old", 1, "203.0.113.100", "203.0.113.20", "203.0.113.9")}, []string{four("203.0.113.9", "a/old")}},
		{"designated", []object{at("a/new", 1, "203.0.113.2").primary("true"), at("a/old", 2, "203.0.113.1")}, []string{four("203.0.113.2", "a/new")}},
		{"designation is exact", []object{at("a/new", 1, "203.0.113.2").primary("True"), at("a/old", 2, "203.0.113.1")}, []string{four("203.0.113.1", "a/old")}},
		{"two designated: the older", []object{at("a/new", 1, "203.0.113.1").primary("true"), at("a/mid", 2, "203.0.113.2").primary("true"), at("a/old", 3, "203.0.113.3")},
			[]string{four("203.0.113.2", "a/mid")}},
		{"excluded", []object{at("a/new", 1, "203.0.113.2"), at("a/old", 2, "203.0.113.1").primary("false")}, []string{four("203.0.113.2", "a/new")}},
		{"excluded alone", []object{at("a/old", 2, "203.0.113.1").primary("false")}, []string{"10.0.0.10 leaves nowhere"}},
		{"exclusion is exact", []object{at("a/new", 1, "203.0.113.2"), at("a/old", 2, "203.0.113.1").primary("False")}, []string{four("203.0.113.1", "a/old")}},
		{"per family", []object{at("a/new", 1, "203.0.113.2", "2001:db8:f::2"), at("a/old", 2, "203.0.113.1")},
			[]string{four("203.0.113.1", "a/old"), "fd00::10 leaves 2001:db8:f::2 of a/new"}},
		{"designated for the family that it has", []object{at("a/new", 1, "2001:db8:f::2").primary("true"), at("a/old", 2, "203.0.113.1", "2001:db8:f::1")},
			[]string{four("203.0.113.1", "a/old"), "fd00::10 leaves 2001:db8:f::2 of a/new"}},
		{"designated without an address", []object{svc("a/new").whole().primary("true"), at("a/old", 2, "203.0.113.1")}, []string{four("203.0.113.1", "a/old")}},
		{"designated whose address is another's", []object{at("a/new", 1, "203.0.113.9").primary("true"), at("b/owner", 5, "203.0.113.9"), at("a/old", 2, "203.0.113.1")},
			[]string{four("203.0.113.1", "a/old")}},
		{"designated whose address is a node's", []object{at("a/new", 1, "198.51.100.1").primary("true"), node("node-b", "198.51.100.1"), at("a/old", 2, "203.0.113.1")},
			[]string{four("203.0.113.1", "a/old")}},
		{"one address of the designated is another's", []object{at("a/new", 1, "203.0.113.8", "203.0.113.9").primary("true"), at("b/owner", 5, "203.0.113.8"), at("a/old", 2, "203.0.113.1")},
			[]string{four("203.0.113.9", "a/new")}},
		{"shared by two Services of one machine", []object{svc("a/tcp").ip("203.0.113.1").ports("53").age(1), svc("a/udp").ip("203.0.113.1").ports("53/UDP").age(2)},
			[]string{four("203.0.113.1", "a/udp")}},
		{"shared, the older of them excluded", []object{svc("a/tcp").ip("203.0.113.1").ports("53").age(1), svc("a/udp").ip("203.0.113.1").ports("53/UDP").age(2).primary("false")},
			[]string{four("203.0.113.1", "a/tcp")}},
		{"shared with an older machine: not ours to leave with", []object{svc("a/new").ip("203.0.113.1").ports("80").age(1).primary("true"), svc("b/old").ip("203.0.113.1").ports("443").age(2),
			at("a/own", 1, "203.0.113.7")}, []string{four("203.0.113.7", "a/own")}},
	}
}

// objectsOfEgress adds the machine behind every Service of namespace a, and nothing behind those of namespace b.
func objectsOfEgress(c egressCase) []object {
	list := append([]object{pod("a/machine", "10.0.0.10", "fd00::10")}, c.objs...)
	for _, o := range c.objs {
		if s, is := o.(svcBuilder); is && s.Namespace == "a" {
			list = append(list, slice("a/"+s.Name, s.Name+"-4", "10.0.0.10@node-a").serves("80", "53", "53/UDP"), slice("a/"+s.Name, s.Name+"-6", "fd00::10@node-a"))
		}
	}
	return list
}

func leaves(s State) []string {
	return splitLines(describe(State{Backends: s.Backends}, nil))
}

// TestEgress is R8, and TestFieldCase_B38 repeats it in every order.
func TestEgress(t *testing.T) {
	for _, c := range egressCases() {
		t.Run(c.name, func(t *testing.T) {
			s, verdicts := plan(t, "node-a", objectsOfEgress(c)...)
			require.Equal(t, c.want, leaves(s))
			for _, b := range s.Backends {
				if b.Primary.IsValid() {
					require.Contains(t, verdictOf(t, verdicts, b.PrimaryOwner.String()).PrimaryEgress, b.Primary)
				}
			}
			primaries := 0
			for _, v := range verdicts {
				primaries += len(v.PrimaryEgress)
			}
			require.Equal(t, len(s.Backends), primaries+countNowhere(s), "each primary is told once")
		})
	}
}

func countNowhere(s State) (n int) {
	for _, b := range s.Backends {
		if !b.Primary.IsValid() {
			n++
		}
	}
	return n
}

// TestFieldCase_B38 restarts twenty times with the objects one by one in random order: the source is the same every time.
func TestFieldCase_B38_EgressDependsOnNothingElse(t *testing.T) {
	rng := rand.New(rand.NewPCG(38, 0))
	for _, c := range egressCases() {
		list := objectsOfEgress(c)
		for restart := range 20 {
			rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			e := NewEngine(testConfig("node-a"), nil)
			for _, o := range list {
				reorderIngress(rng, o)
				e.Apply(objects(o), Facts{})
			}
			require.Equal(t, c.want, leaves(e.State()), "%s, restart %d", c.name, restart)
		}
	}
}

func reorderIngress(rng *rand.Rand, o object) {
	if s, is := o.(svcBuilder); is {
		in := s.Status.LoadBalancer.Ingress
		rng.Shuffle(len(in), func(i, j int) { in[i], in[j] = in[j], in[i] })
	}
}

// TestFieldCase_B38 adds and removes Services of a machine: a younger one changes nothing, a fallback is told.
func TestFieldCase_B38_FallbackIsSignalled(t *testing.T) {
	e := NewEngine(testConfig("node-a"), nil)
	service := func(name string, age int, ip string) object {
		return svc(name).whole().ip(ip).age(age)
	}
	ends := func(name string) object { return slice(name, keyOf(name).Name, "10.0.0.10@node-a") }
	e.Apply(objects(pod("a/p", "10.0.0.10"), service("a/two", 2, "203.0.113.2"), ends("a/two"), ends("a/one"), ends("a/star")), Facts{})
	out := e.Apply(objects(service("a/one", 1, "203.0.113.1")), Facts{})
	require.Empty(t, out.Delta.Backends, "a third, younger address changes no primary")
	out = e.Apply(objects(svc("a/star").whole().ip("203.0.113.3").primary("true")), Facts{})
	require.Equal(t, []string{"10.0.0.10 leaves 203.0.113.3 of a/star"}, leaves(e.State()))
	require.Len(t, out.Verdicts, 2, "the new primary and the former one")
	gone := NewObjects()
	gone.Services[keyOf("a/star")] = nil
	out = e.Apply(gone, Facts{})
	require.Equal(t, []string{"10.0.0.10 leaves 203.0.113.2 of a/two"}, leaves(e.State()))
	require.Equal(t, []Key{keyOf("a/star")}, out.Gone)
	require.Len(t, out.Verdicts, 1)
	require.Equal(t, "[203.0.113.2]", fmt.Sprint(verdictOf(t, out.Verdicts, "a/two").PrimaryEgress))
}

func TestEgressOfABackendThatIsNotReady(t *testing.T) {
	for _, rank := range []string{"ready", "serving", "notready"} {
		s, _ := plan(t, "node-a", svc("a/web").ip("203.0.113.1").ports("80"), vm("a/web", "10.0.0.10").ranked(rank).serves("80"))
		require.Equal(t, []string{"10.0.0.10 leaves 203.0.113.1 of a/web"}, leaves(s), rank)
	}
}

func TestEgressOnTheNodeOfTheBackendOnly(t *testing.T) {
	objs := []object{svc("a/web").whole().ip("203.0.113.1").spread(), vm("a/web", "10.0.0.10")}
	s, _ := plan(t, "node-b", objs...)
	require.Empty(t, s.Backends)
}
