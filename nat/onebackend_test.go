// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSameAddressOnTwoNodes is the live migration of R4 that keeps the address: node-a with the rows' rank, node-b with the columns'.
func TestSameAddressOnTwoNodes(t *testing.T) {
	ranks := []string{"ready", "serving", "notready"}
	for _, policy := range []string{"Local", "Cluster"} {
		for i, onA := range ranks {
			for j, onB := range ranks {
				web := svc("a/web").whole().ip("203.0.113.10")
				if policy == "Cluster" {
					web = web.spread()
				}
				objs := []object{web, vm("a/web", "10.0.0.10").ranked(onA), vm("a/web", "10.0.0.10").on("node-b").ranked(onB)}
				for node, translates := range map[string]bool{"node-a": i <= j, "node-b": j <= i} {
					t.Run(policy+" "+onA+" "+onB+" seen from "+node, func(t *testing.T) {
						s, v := plan(t, node, objs...)
						if translates {
							requireText(t, servedWhole, describe(s, v))
							return
						}
						// The machine is kept in: while it migrates it may still, or already, run here.
						requireText(t, "203.0.113.10 a/web guarded\n10.0.0.10 leaves nowhere\na/web: BackendElsewhere", describe(s, v))
					})
				}
			}
		}
	}
}

// TestTwoAddresses is the ambiguity of R4 without anything programmed.
func TestTwoAddresses(t *testing.T) {
	whole := svc("a/web").whole().ip("203.0.113.10")
	list := svc("a/web").ip("203.0.113.10").ports("80")
	at := func(a, rank string) vmBuilder { return vm("a/web", a).ranked(rank).serves("80") }
	ambiguous := "203.0.113.10 a/web guarded\na/web: MultipleBackends"
	runRows(t, []row{
		{name: "both ready", objs: []object{whole, at("10.0.0.10", "ready"), at("10.0.0.11", "ready")}, want: ambiguous},
		{name: "both ready, ports", objs: []object{list, at("10.0.0.10", "ready"), at("10.0.0.11", "ready")}, want: ambiguous},
		{name: "both serving", objs: []object{whole, at("10.0.0.10", "serving"), at("10.0.0.11", "serving")}, want: ambiguous},
		{name: "both not ready", objs: []object{whole, at("10.0.0.10", "notready"), at("10.0.0.11", "notready")}, want: ambiguous},
		{name: "on two nodes", objs: []object{whole, at("10.0.0.10", "ready"), at("10.0.0.11", "ready").on("node-b")}, want: ambiguous},
		{name: "one of them not backed by a Pod", want: servedWhole,
			objs: []object{whole, at("10.0.0.10", "ready"), slice("a/web", "s", "10.0.0.11@node-a")}},
		{name: "ambiguous in one family only", want: `
			203.0.113.10 a/web guarded
			2001:db8:f::10 a/web whole>fd00::10 @fd00::10
			fd00::10 leaves 2001:db8:f::10 of a/web
			a/web: MultipleBackends`,
			objs: []object{svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10"), at("10.0.0.10", "ready"), at("10.0.0.11", "ready"), vm("a/web", "fd00::10")}},
	})
}

func hints(public string, backends ...string) map[netip.Addr][]netip.Addr {
	h := map[netip.Addr][]netip.Addr{}
	for _, b := range backends {
		h[addr(public)] = append(h[addr(public)], addr(b))
	}
	return h
}

// TestProgrammedBackendStaysAtStart is R4 and R17: what the kernel holds decides an ambiguity, and nothing else does.
func TestProgrammedBackendStaysAtStart(t *testing.T) {
	two := []object{svc("a/web").whole().ip("203.0.113.10", "203.0.113.11"), vm("a/web", "10.0.0.10"), vm("a/web", "10.0.0.11")}
	for name, c := range map[string]struct {
		hints map[netip.Addr][]netip.Addr
		objs  []object
		want  string
	}{
		"the lower":             {hints("203.0.113.10", "10.0.0.10"), two, "10.0.0.10"},
		"the higher":            {hints("203.0.113.10", "10.0.0.11"), two, "10.0.0.11"},
		"on another address":    {hints("203.0.113.11", "10.0.0.11"), two, "10.0.0.11"},
		"no candidate any more": {hints("203.0.113.10", "10.0.0.12"), two, ""},
		"of another Service":    {hints("203.0.113.99", "10.0.0.11"), two, ""},
		"ranked lower": {hints("203.0.113.10", "10.0.0.11"),
			[]object{two[0], two[1], vm("a/web", "10.0.0.11").ranked("serving")}, "10.0.0.10"},
		"other family": {hints("203.0.113.10", "fd00::10"), two, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := NewEngine(testConfig("node-a"), c.hints)
			e.Apply(objects(c.objs...), Facts{})
			s := e.State()
			checkInvariants(t, s)
			for _, a := range s.Addresses {
				if c.want == "" {
					require.False(t, a.Whole.Active())
					continue
				}
				require.Equal(t, addr(c.want), a.Whole.Backend)
			}
		})
	}
}

func TestHintsHoldForTheFirstBatchOnly(t *testing.T) {
	e := NewEngine(testConfig("node-a"), hints("203.0.113.10", "10.0.0.11"))
	e.Apply(objects(svc("a/web").whole().ip("203.0.113.10")), Facts{})
	e.Apply(objects(vm("a/web", "10.0.0.10"), vm("a/web", "10.0.0.11")), Facts{})
	requireText(t, "203.0.113.10 a/web guarded\na/web: MultipleBackends", describe(e.State(), e.Verdicts()))
}

// TestAmbiguityOverTime follows one Service: what is programmed stays while it is a candidate, and it resolves by itself.
func TestAmbiguityOverTime(t *testing.T) {
	e := NewEngine(testConfig("node-a"), nil)
	step := func(want string, o Objects) {
		t.Helper()
		e.Apply(o, Facts{})
		checkInvariants(t, e.State())
		requireText(t, want, describe(e.State(), e.Verdicts()))
	}
	backend := func(a string, reason Reason) string {
		return "203.0.113.10 a/web whole>" + a + " @" + a + "\n" + a + " leaves 203.0.113.10 of a/web\na/web: " + string(reason)
	}
	at := func(a, rank string) vmBuilder { return vm("a/web", a).ranked(rank) }
	step(backend("10.0.0.11", ReasonProgrammed), objects(svc("a/web").whole().ip("203.0.113.10"), at("10.0.0.11", "ready")))
	step(backend("10.0.0.11", ReasonMultipleBackends), objects(at("10.0.0.10", "ready")))
	step(backend("10.0.0.11", ReasonMultipleBackends), objects(svc("a/web").whole().ip("203.0.113.10").age(3)))
	step(backend("10.0.0.10", ReasonProgrammed), objects(at("10.0.0.11", "serving")))
	step(backend("10.0.0.10", ReasonMultipleBackends), objects(at("10.0.0.11", "ready")))
	gone := objects(at("10.0.0.10", "ready"))
	for key := range gone.Slices {
		gone.Slices[key] = nil
	}
	step(backend("10.0.0.11", ReasonProgrammed), gone)
	step(backend("10.0.0.11", ReasonMultipleBackends), objects(at("10.0.0.12", "ready")))
	step("203.0.113.10 a/web guarded\na/web: MultipleBackends", objects(at("10.0.0.11", "notready"), at("10.0.0.10", "ready")))
	step(backend("10.0.0.12", ReasonProgrammed), objects(at("10.0.0.10", "serving")))
}

// TestNothingNewIsProgrammedWhileAmbiguous: a backend that was chosen but held nothing is not "already programmed".
func TestNothingNewIsProgrammedWhileAmbiguous(t *testing.T) {
	t.Run("no address before", func(t *testing.T) {
		e := NewEngine(testConfig("node-a"), nil)
		e.Apply(objects(svc("a/web").whole(), vm("a/web", "10.0.0.10")), Facts{})
		e.Apply(objects(vm("a/web", "10.0.0.11")), Facts{})
		e.Apply(objects(svc("a/web").whole().ip("203.0.113.10")), Facts{})
		requireText(t, "203.0.113.10 a/web guarded\na/web: MultipleBackends", describe(e.State(), e.Verdicts()))
	})
	t.Run("address of an older Service before", func(t *testing.T) {
		e := NewEngine(testConfig("node-a"), nil)
		e.Apply(objects(svc("a/old").whole().ip("203.0.113.10").age(9), svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10")), Facts{})
		e.Apply(objects(vm("a/web", "10.0.0.11")), Facts{})
		gone := NewObjects()
		gone.Services[keyOf("a/old")] = nil
		e.Apply(gone, Facts{})
		requireText(t, "203.0.113.10 a/web guarded\na/web: MultipleBackends", describe(e.State(), e.Verdicts()))
	})
}
