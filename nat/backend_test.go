// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestBackends is R3: which endpoints count.
func TestBackends(t *testing.T) {
	web := svc("a/web").whole().ip("203.0.113.10")
	none := func(reason Reason) string { return "203.0.113.10 a/web guarded\na/web: " + string(reason) }
	ends := func(list ...string) sliceBuilder { return slice("a/web", "s", list...) }
	mine := pod("a/p", "10.0.0.10")
	runRows(t, []row{
		{name: "no slice", objs: []object{web, mine}, want: none(ReasonNoBackend)},
		{name: "empty slice", objs: []object{web, mine, ends()}, want: none(ReasonNoBackend)},
		{name: "slice of another Service", objs: []object{web, mine, slice("a/other", "web", "10.0.0.10@node-a")}, want: none(ReasonNoBackend)},
		{name: "slice of another namespace", objs: []object{web, mine, slice("b/web", "web", "10.0.0.10@node-a")}, want: none(ReasonNoBackend)},
		{name: "nil conditions are ready", objs: []object{web, mine, ends("10.0.0.10@node-a")}, want: servedWhole},
		{name: "same address twice in a slice", objs: []object{web, mine, ends("10.0.0.10@node-a", "10.0.0.10@node-a!notready")}, want: servedWhole},
		{name: "same address in two slices", objs: []object{web, mine, ends("10.0.0.10@node-a"), slice("a/web", "s2", "10.0.0.10@node-a")}, want: servedWhole},
		{name: "no Pod", objs: []object{web, ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Pod with another address", objs: []object{web, pod("a/p", "10.0.0.11"), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Pod of another namespace", objs: []object{web, pod("b/p", "10.0.0.10"), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Pod on another node", objs: []object{web, pod("a/p", "10.0.0.10").on("node-b"), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Pod elsewhere, endpoint elsewhere", objs: []object{web, pod("a/p", "10.0.0.10").on("node-b"), ends("10.0.0.10@node-b")}, want: none(ReasonElsewhere)},
		{name: "second address of a Pod", objs: []object{web, pod("a/p", "fd00::10", "10.0.0.10"), ends("10.0.0.10@node-a")}, want: servedWhole},
		{name: "Succeeded", objs: []object{web, pod("a/p", "10.0.0.10").phase(corev1.PodSucceeded), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Failed", objs: []object{web, pod("a/p", "10.0.0.10").phase(corev1.PodFailed), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "Pending counts", objs: []object{web, pod("a/p", "10.0.0.10").phase(corev1.PodPending), ends("10.0.0.10@node-a")}, want: servedWhole},
		{name: "hostNetwork", objs: []object{web, pod("a/p", "10.0.0.10").hostNetwork(), ends("10.0.0.10@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "node address", objs: []object{web, pod("a/p", "198.51.100.1"), node("node-a", "198.51.100.1"), ends("198.51.100.1@node-a")}, want: none(ReasonBackendUnverified)},
		{name: "address of another node", objs: []object{web, node("node-b", "198.51.100.2"), ends("198.51.100.2@node-b")}, want: none(ReasonBackendUnverified)},
		{name: "interface address", objs: []object{web, pod("a/p", "198.51.100.1"), ends("198.51.100.1@node-a")}, want: none(ReasonBackendUnverified),
			facts: Facts{Addresses: prefixes("198.51.100.1/24")}},
		{name: "no nodeName", objs: []object{web, pod("a/p", "10.0.0.10"), ends("10.0.0.10")}, want: none(ReasonBackendUnverified)},
		{name: "empty nodeName", objs: []object{web, pod("a/p", "10.0.0.10"), ends("10.0.0.10@")}, want: none(ReasonBackendUnverified)},
		{name: "FQDN slice", objs: []object{web, mine, ends("10.0.0.10@node-a").family(discoveryv1.AddressTypeFQDN)}, want: none(ReasonBackendUnverified)},
		{name: "slice without the label", objs: []object{web, mine, unlabelled(ends("10.0.0.10@node-a"))}, want: none(ReasonNoBackend)},
		{name: "bad strings beside a good one", want: servedWhole, objs: []object{web, mine,
			ends("10.0.0.10@node-a", "@node-a", "0.0.0.0@node-a", "127.0.0.1@node-a", "10.0.0.010@node-a", "fd00::10@node-a")}},
	})
}

func unlabelled(b sliceBuilder) sliceBuilder {
	b.Labels = nil
	return b
}

// badAddresses are strings that must not stand for a machine, in either list of addresses.
func badAddresses() []string {
	return []string{
		"", " ", "0.0.0.0", "::", "127.0.0.1", "127.1.2.3", "::1", "169.254.169.254", "fe80::1", "fe80::1%eth0", "fd00::1%eth0",
		"224.0.0.1", "239.1.1.1", "ff02::1", "255.255.255.255", "::ffff:10.0.0.10", "::ffff:0a00:000a", "010.0.0.10", "10.0.0.010",
		"10.0.0", "10.0.0.10.", "10.0.0.10 ", "10.0.0.10/32", "10.0.0.256", "0x0a.0.0.10", "167772170", "host.example", "*", "any", "[fd00::10]",
	}
}

func TestBadEndpointStringsAreRefusedOneByOne(t *testing.T) {
	for _, bad := range badAddresses() {
		for _, kind := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			t.Run(fmt.Sprintf("%s %q", kind, bad), func(t *testing.T) {
				s := slice("a/web", "s", bad+"@node-a").family(kind)
				objs := []object{svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10"), s, pod("a/p", bad)}
				state, verdicts := plan(t, "node-a", objs...)
				require.Empty(t, state.Backends)
				for _, a := range state.Addresses {
					require.False(t, a.Whole.Active())
				}
				require.Contains(t, verdictOf(t, verdicts, "a/web").Message, "EndpointSlice s: ")

				good := vm("a/web", "10.0.0.10", "fd00::10")
				state, verdicts = plan(t, "node-a", append(objs, good)...)
				require.Len(t, state.Backends, 2, "the others go on")
				v := verdictOf(t, verdicts, "a/web")
				require.True(t, v.Programmed)
				require.Contains(t, v.Message, "EndpointSlice s: ", "a refusal is reported although the Service works")
			})
		}
	}
}

func TestEndpointWithoutAddressesIsReported(t *testing.T) {
	s := slice("a/web", "s")
	s.Endpoints = []discoveryv1.Endpoint{{NodeName: ptr("node-a")}}
	_, verdicts := plan(t, "node-a", svc("a/web").whole().ip("203.0.113.10"), s)
	v := verdictOf(t, verdicts, "a/web")
	require.Equal(t, ReasonBackendUnverified, v.Reason)
	require.Contains(t, v.Message, "has no address")
}

// TestRank goes through all 27 settings of the conditions.
func TestRank(t *testing.T) {
	values := map[string]*bool{"nil": nil, "true": ptr(true), "false": ptr(false)}
	for rn, r := range values {
		for sn, s := range values {
			for tn, term := range values {
				name := fmt.Sprintf("ready %s serving %s terminating %s", rn, sn, tn)
				isReady := rn != "false"
				isServing := sn == "true" || sn == "nil" && isReady
				want := notReady
				if isServing || isReady {
					want = serving
				}
				if isReady && tn != "true" {
					want = ready
				}
				require.Equal(t, want, rankOf(discoveryv1.EndpointConditions{Ready: r, Serving: s, Terminating: term}), name)
			}
		}
	}
}

// TestRankDecides is the last paragraph of R3 and the order of R4: the best-ranked endpoint, and who may use what rank.
func TestRankDecides(t *testing.T) {
	whole := svc("a/web").whole().ip("203.0.113.10")
	list := svc("a/web").ip("203.0.113.10").ports("80").icmp()
	at := func(a, rank string) vmBuilder { return vm("a/web", a).ranked(rank).serves("80") }
	closed := `
		203.0.113.10 a/web guarded @10.0.0.10
		10.0.0.10 leaves 203.0.113.10 of a/web
		a/web: NoBackend`
	open := `
		203.0.113.10 a/web echo>10.0.0.10 TCP80>10.0.0.10:80 @10.0.0.10
		10.0.0.10 leaves 203.0.113.10 of a/web
		a/web: Programmed`
	runRows(t, []row{
		{name: "whole, serving", objs: []object{whole, at("10.0.0.10", "serving")}, want: servedWhole},
		{name: "whole, not ready", objs: []object{whole, at("10.0.0.10", "notready")}, want: servedWhole},
		{name: "list, ready", objs: []object{list, at("10.0.0.10", "ready")}, want: open},
		{name: "list, serving", objs: []object{list, at("10.0.0.10", "serving")}, want: open},
		{name: "list, not ready: closed, egress stays", objs: []object{list, at("10.0.0.10", "notready")}, want: closed},
		{name: "ready before serving", objs: []object{whole, at("10.0.0.10", "ready"), at("10.0.0.9", "serving")}, want: servedWhole},
		{name: "serving before not ready", objs: []object{whole, at("10.0.0.10", "serving"), at("10.0.0.9", "notready")}, want: servedWhole},
		{name: "the best of one address counts", objs: []object{list, at("10.0.0.10", "notready"),
			slice("a/web", "z", "10.0.0.10@node-a!ready").serves("80")}, want: open},
	})
}
