// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestEveryFieldCounts changes one field of one object and nothing else: the engine must notice, and notice the way back.
func TestEveryFieldCounts(t *testing.T) {
	web := func() svcBuilder {
		return svc("a/web").ip("203.0.113.10", "2001:db8:f::10").ports("http:80").sources("198.51.100.8/32", "2001:db8:e::8/128")
	}
	ends := func(target, endpoint string) object { return slice("a/web", "s4", endpoint).serves("http:" + target) }
	start := []object{
		web(), svc("a/second").whole().ip("203.0.113.11").age(-1), pod("a/p", "10.0.0.10", "fd00::10"), node("node-b", "198.51.100.2").pods("10.244.0.0/24"),
		ends("8080", "10.0.0.10@node-a"), slice("a/web", "s6", "fd00::10@node-a").serves("http:8080"), slice("a/second", "t4", "10.0.0.10@node-a"),
	}
	for name, changed := range map[string]object{
		"IPv4 sources":    web().sources("198.51.100.9/32", "2001:db8:e::8/128"),
		"IPv6 sources":    web().sources("198.51.100.8/32", "2001:db8:e::9/128"),
		"bad source":      web().sources("198.51.100.8/32", "2001:db8:e::8/128", "nonsense"),
		"no sources":      web().sources(),
		"age":             web().age(-9),
		"method":          web().whole(),
		"echo":            web().icmp(),
		"designation":     web().primary("false"),
		"port":            web().ports("443"),
		"bad port":        web().ports("70000"),
		"address":         web().ip("203.0.113.12"),
		"bad address":     web().ip("203.0.113.012"),
		"target port":     ends("8081", "10.0.0.10@node-a"),
		"no target":       slice("a/web", "s4", "10.0.0.10@node-a"),
		"endpoint":        ends("8080", "10.0.0.11@node-a"),
		"endpoint node":   ends("8080", "10.0.0.10@node-b"),
		"endpoint rank":   ends("8080", "10.0.0.10@node-a!notready"),
		"refused beside":  slice("a/web", "s4", "10.0.0.10@node-a", "127.0.0.1@node-a").serves("http:8080"),
		"slice family":    slice("a/web", "s4", "10.0.0.10@node-a").serves("http:8080").family("FQDN"),
		"Pod address":     pod("a/p", "10.0.0.10", "fd00::11"),
		"Pod phase":       pod("a/p", "10.0.0.10", "fd00::10").phase(corev1.PodFailed),
		"Pod node":        pod("a/p", "10.0.0.10", "fd00::10").on("node-b"),
		"Pod network":     pod("a/p", "10.0.0.10", "fd00::10").hostNetwork(),
		"node address":    node("node-b", "198.51.100.3").pods("10.244.0.0/24"),
		"node pods":       node("node-b", "198.51.100.2").pods("10.245.0.0/24"),
		"node before all": node("node-0"),
	} {
		t.Run(name, func(t *testing.T) {
			e := NewEngine(testConfig("node-a"), nil)
			e.Apply(objects(start...), Facts{})
			state, verdicts := e.State(), e.Verdicts()
			out := e.Apply(objects(changed), Facts{})
			want, wantVerdicts := Build(testConfig("node-a"), objects(append(start, changed)...), Facts{})
			requireEqual(t, 0, 1, want, e.State())
			requireEqual(t, 0, 1, wantVerdicts, e.Verdicts())
			if name != "node before all" { // no Service is without a backend, so nothing is said anew
				require.False(t, out.Delta.Empty() && len(out.Verdicts) == 0, "the change was noticed")
			}
			back := objects(start...)
			if added := objects(changed); len(added.Nodes) == 1 && added.Nodes["node-0"] != nil {
				back.Nodes["node-0"] = nil
			}
			e.Apply(back, Facts{})
			requireEqual(t, 0, 2, state, e.State())
			requireEqual(t, 0, 2, verdicts, e.Verdicts())
		})
	}
}

// TestTrafficPolicyCounts: from the node without the backend, the policy alone decides.
func TestTrafficPolicyCounts(t *testing.T) {
	e := NewEngine(testConfig("node-b"), nil)
	e.Apply(objects(svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10")), Facts{})
	require.Len(t, e.Apply(objects(svc("a/web").whole().ip("203.0.113.10").spread()), Facts{}).Delta.Addresses, 1)
	require.Len(t, e.Apply(objects(svc("a/web").whole().ip("203.0.113.10")), Facts{}).Delta.Addresses, 1)
}

// TestPlan is what the plan command prints.
func TestPlan(t *testing.T) {
	e := NewEngine(testConfig("node-a"), nil)
	require.NotNil(t, e.Plan().Translations, "a list, not null, in JSON")
	require.NotNil(t, e.Plan().Verdicts, "a list, not null, in JSON")
	e.Apply(objects(svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10").age(2), vm("a/web", "10.0.0.10", "fd00::10"),
		svc("a/list").ip("203.0.113.9").ports("http:80", "53/UDP").age(1), vm("a/list", "10.0.0.10").serves("http:8080", "53/UDP"),
		svc("b/lost").whole().ip("203.0.113.10"), vm("b/lost", "10.0.0.11"),
		svc("b/far").whole().ip("203.0.113.12"), vm("b/far", "10.0.0.12").on("node-b"),
		svc("b/spread").whole().ip("203.0.113.13").spread(), vm("b/spread", "10.0.0.13").on("node-b"),
		svc("b/closed").ip("203.0.113.14").ports("80"), vm("b/closed", "10.0.0.14").ranked("notready").serves("80")), Facts{})
	web := Translation{Public: addr("203.0.113.10"), Family: "IPv4", Method: WholeIP, Backend: addr("10.0.0.10"), Primary: true, Owner: "a/web"}
	six := Translation{Public: addr("2001:db8:f::10"), Family: "IPv6", Method: WholeIP, Backend: addr("fd00::10"), Primary: true, Owner: "a/web"}
	list := Translation{Public: addr("203.0.113.9"), Family: "IPv4", Method: PortList, Backend: addr("10.0.0.10"), Owner: "a/list",
		Ports: []TranslatedPort{{"TCP", 80, 8080}, {"UDP", 53, 53}}}
	spread := Translation{Public: addr("203.0.113.13"), Family: "IPv4", Method: WholeIP, Backend: addr("10.0.0.13"), Owner: "b/spread"}
	closed := Translation{Public: addr("203.0.113.14"), Family: "IPv4", Method: PortList, Backend: addr("10.0.0.14"), Primary: true, Owner: "b/closed"}
	p := e.Plan()
	require.Equal(t, "node-a", p.Node)
	requireEqual(t, 0, 0, []Translation{list, web, spread, closed, six}, p.Translations)
	require.Len(t, p.Verdicts, 6)
	for range 20 {
		require.Equal(t, p, e.Plan(), "two plans of the same objects are the same")
	}
}
