// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestLocality is R5 and the Hosted and Elsewhere flags, each row seen from both nodes.
func TestLocality(t *testing.T) {
	list := func() svcBuilder { return svc("a/web").ip("203.0.113.10").ports("http:80").icmp() }
	here, there := vm("a/web", "10.0.0.10").serves("http:8080"), vm("a/web", "10.0.1.10").on("node-b").serves("http:8080")
	for _, c := range []struct {
		name         string
		objs         []object
		wantA, wantB string
	}{
		{"Local", []object{svc("a/web").whole().ip("203.0.113.10"), here}, servedWhole, `
			203.0.113.10 a/web guarded
			a/web: BackendElsewhere`},
		{"Cluster, whole", []object{svc("a/web").whole().ip("203.0.113.10").spread(), here}, servedWhole, `
			203.0.113.10 a/web elsewhere whole>10.0.0.10
			a/web: Programmed`},
		{"Cluster, ports", []object{list().spread(), there}, `
			203.0.113.10 a/web elsewhere echo>10.0.1.10 TCP80>10.0.1.10:8080
			a/web: Programmed`, `
			203.0.113.10 a/web echo>10.0.1.10 TCP80>10.0.1.10:8080 @10.0.1.10
			10.0.1.10 leaves 203.0.113.10 of a/web
			a/web: Programmed`},
		{"Cluster, not ready ports are closed everywhere", []object{list().spread(), there.ranked("notready")}, `
			203.0.113.10 a/web guarded
			a/web: NoBackend`, `
			203.0.113.10 a/web guarded @10.0.1.10
			10.0.1.10 leaves 203.0.113.10 of a/web
			a/web: NoBackend`},
		{"Cluster, serving elsewhere beats not ready here", []object{list().spread(), here.ranked("notready"), there.ranked("serving")}, `
			203.0.113.10 a/web elsewhere echo>10.0.1.10 TCP80>10.0.1.10:8080
			a/web: Programmed`, `
			203.0.113.10 a/web echo>10.0.1.10 TCP80>10.0.1.10:8080 @10.0.1.10
			10.0.1.10 leaves 203.0.113.10 of a/web
			a/web: Programmed`},
		{"Cluster, no nodeName", []object{list().spread(), slice("a/web", "s", "10.0.0.10").serves("http:8080"), pod("a/p", "10.0.0.10")}, `
			203.0.113.10 a/web guarded
			a/web: BackendUnverified`, `
			203.0.113.10 a/web guarded
			a/web: BackendUnverified`},
		{"shared address, one backend on each node", []object{
			svc("a/web").ip("203.0.113.10").ports("80").age(2), vm("a/web", "10.0.0.10").serves("80"),
			svc("b/db").ip("203.0.113.10").ports("443").age(1), vm("b/db", "10.0.1.20").on("node-b").serves("443")}, `
			203.0.113.10 a/web TCP80>10.0.0.10:80 @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: Programmed
			b/db: BackendElsewhere`, `
			203.0.113.10 a/web TCP443>10.0.1.20:443(b/db) @10.0.1.20
			10.0.1.20 leaves nowhere
			a/web: BackendElsewhere
			b/db: Programmed`},
	} {
		runRows(t, []row{
			{name: c.name + " from node-a", objs: c.objs, want: c.wantA},
			{name: c.name + " from node-b", objs: c.objs, want: c.wantB, node: "node-b"},
		})
	}
}

// TestFamilies is R6.
func TestFamilies(t *testing.T) {
	web := svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10")
	six := svc("a/web").whole().ip("2001:db8:f::10")
	runRows(t, []row{
		{name: "both", objs: []object{web, vm("a/web", "10.0.0.10", "fd00::10")}, want: `
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			2001:db8:f::10 a/web whole>fd00::10 @fd00::10
			10.0.0.10 leaves 203.0.113.10 of a/web
			fd00::10 leaves 2001:db8:f::10 of a/web
			a/web: Programmed`},
		{name: "backend of IPv4 only", objs: []object{web, vm("a/web", "10.0.0.10")}, want: `
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			2001:db8:f::10 a/web guarded
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: NoBackendForFamily`},
		{name: "backend of IPv6 only", objs: []object{web, vm("a/web", "fd00::10")}, want: `
			203.0.113.10 a/web guarded
			2001:db8:f::10 a/web whole>fd00::10 @fd00::10
			fd00::10 leaves 2001:db8:f::10 of a/web
			a/web: NoBackendForFamily`},
		{name: "address of the family without a backend", objs: []object{six, vm("a/web", "10.0.0.10")}, want: `
			2001:db8:f::10 a/web guarded
			a/web: NoBackendForFamily`},
		{name: "family without an address is no fault", objs: []object{six, vm("a/web", "10.0.0.10", "fd00::10")}, want: `
			2001:db8:f::10 a/web whole>fd00::10 @fd00::10
			fd00::10 leaves 2001:db8:f::10 of a/web
			a/web: Programmed`},
		{name: "no backend at all", objs: []object{web}, want: `
			203.0.113.10 a/web guarded
			2001:db8:f::10 a/web guarded
			a/web: NoBackend`},
		{name: "IPv6 address in an IPv4 slice, although its Pod has it", want: `
			203.0.113.10 a/web guarded
			2001:db8:f::10 a/web guarded
			a/web: BackendUnverified`, objs: []object{web, pod("a/p", "fd00::10"), slice("a/web", "s", "fd00::10@node-a").family(discoveryv1.AddressTypeIPv4)}},
		{name: "IPv4 address in an IPv6 slice, although its Pod has it", want: `
			203.0.113.10 a/web guarded
			2001:db8:f::10 a/web guarded
			a/web: BackendUnverified`, objs: []object{web, pod("a/p", "10.0.0.10"), slice("a/web", "s", "10.0.0.10@node-a").family(discoveryv1.AddressTypeIPv6)}},
		{name: "families on different nodes", objs: []object{web, vm("a/web", "10.0.0.10"), vm("a/web", "fd00::10").on("node-b")}, want: `
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			2001:db8:f::10 a/web guarded
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: BackendElsewhere`},
	})
}
