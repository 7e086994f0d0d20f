// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const servedWhole = `
	203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
	10.0.0.10 leaves 203.0.113.10 of a/web
	a/web: Programmed`

// TestDelegation is R1: the label and the type select, and every ingress IP counts.
func TestDelegation(t *testing.T) {
	web := func() svcBuilder { return svc("a/web").whole().ip("203.0.113.10") }
	machine := vm("a/web", "10.0.0.10")
	proxy, vip := corev1.LoadBalancerIPModeProxy, corev1.LoadBalancerIPModeVIP
	runRows(t, []row{
		{name: "cozy-proxy", objs: []object{web(), machine}, want: servedWhole},
		{name: "natplane", objs: []object{web().label("natplane"), machine}, want: servedWhole},
		{name: "label of another proxy", objs: []object{web().label("kube-vip"), machine}},
		{name: "empty label", objs: []object{web().label(""), machine}},
		{name: "label in other case", objs: []object{web().label("Cozy-Proxy"), machine}},
		{name: "own proxy name only", objs: []object{web(), machine}, config: func(c *Config) { c.ProxyNames = []string{"mine"} }},
		{name: "own proxy name", objs: []object{web().label("mine"), machine}, want: servedWhole,
			config: func(c *Config) { c.ProxyNames = []string{"mine"} }},
		{name: "ClusterIP", objs: []object{web().kind(corev1.ServiceTypeClusterIP), machine}},
		{name: "NodePort", objs: []object{web().kind(corev1.ServiceTypeNodePort), machine}},
		{name: "no address", objs: []object{svc("a/web").whole(), machine}, want: `a/web: NoAddress`},
		{name: "hostname only", objs: []object{svc("a/web").whole().hostname("x.example"), machine}, want: `a/web: NoAddress`},
		{name: "ipMode Proxy", want: `a/web: NoAddress`,
			objs: []object{svc("a/web").whole().ingress(corev1.LoadBalancerIngress{IP: "203.0.113.10", IPMode: &proxy}), machine}},
		{name: "ipMode VIP", want: servedWhole,
			objs: []object{svc("a/web").whole().ingress(corev1.LoadBalancerIngress{IP: "203.0.113.10", IPMode: &vip}), machine}},
		{name: "hostname first", objs: []object{svc("a/web").whole().hostname("x.example").ip("203.0.113.10"), machine}, want: servedWhole},
		{name: "same address twice", objs: []object{web().ip("203.0.113.10"), machine}, want: servedWhole},
		{name: "several addresses, the lowest is primary", objs: []object{svc("a/web").whole().ip("203.0.113.9", "203.0.113.10", "203.0.113.100"), machine}, want: `
			203.0.113.9 a/web whole>10.0.0.10 @10.0.0.10
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			203.0.113.100 a/web whole>10.0.0.10 @10.0.0.10
			10.0.0.10 leaves 203.0.113.9 of a/web
			a/web: Programmed`},
		{name: "bad address beside a good one", objs: []object{web().ip("203.0.113.011"), machine}, want: `
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: InvalidAddress`},
		{name: "only bad addresses", want: `a/web: InvalidAddress`, objs: []object{svc("a/web").whole().
			ip("0.0.0.0", "::", "127.0.0.1", "::ffff:203.0.113.10", "169.254.1.1", "fe80::1", "224.0.0.1", "ff02::1", "nonsense", "255.255.255.255", "203.0.113.0/24"), machine}},
	})
}

// TestMethod is R2 and R11.
func TestMethod(t *testing.T) {
	list := func() svcBuilder { return svc("a/web").ip("203.0.113.10") }
	machine := vm("a/web", "10.0.0.10").serves("80", "http:8080", "sip:5060/SCTP", "dns:53/UDP", "dns:5353")
	noPorts := `
		203.0.113.10 a/web guarded
		a/web: NoPorts`
	served := func(forwards string) string {
		return "203.0.113.10 a/web " + forwards + " @10.0.0.10\n10.0.0.10 leaves 203.0.113.10 of a/web\na/web: Programmed"
	}
	runRows(t, []row{
		{name: "whole ignores ports", objs: []object{list().whole().ports("65535", "22"), machine}, want: served("whole>10.0.0.10")},
		{name: "whole ignores allowICMP", objs: []object{list().whole().icmp(), machine}, want: served("whole>10.0.0.10")},
		{name: "whole with endpoint slices without ports", objs: []object{list().whole(), vm("a/web", "10.0.0.10")}, want: served("whole>10.0.0.10")},
		{name: "True is not true", objs: []object{list().annotate(AnnotationWholeIP, "True"), machine}, want: noPorts},
		{name: "1 is not true", objs: []object{list().annotate(AnnotationWholeIP, "1"), machine}, want: noPorts},
		{name: "' true' is not true", objs: []object{list().annotate(AnnotationWholeIP, " true"), machine}, want: noPorts},
		{name: "empty list fails closed", objs: []object{list(), machine}, want: noPorts},
		{name: "empty list with allowICMP fails closed", objs: []object{list().icmp(), machine}, want: noPorts},
		{name: "unusable list fails closed", objs: []object{list().ports("0", "70000", "80/ICMP", "-1"), machine}, want: noPorts},
		{name: "unusable beside usable", objs: []object{list().ports("70000", "http:80"), machine}, want: served("TCP80>10.0.0.10:8080")},
		{name: "named target port", objs: []object{list().ports("http:80"), machine}, want: served("TCP80>10.0.0.10:8080")},
		{name: "same port inside", objs: []object{list().ports("80"), machine}, want: served("TCP80>10.0.0.10:80")},
		{name: "SCTP", objs: []object{list().ports("sip:5060/SCTP"), machine}, want: served("SCTP5060>10.0.0.10:5060")},
		{name: "name and protocol both select", objs: []object{list().ports("dns:53", "dns:53/UDP"), machine},
			want: served("TCP53>10.0.0.10:5353 UDP53>10.0.0.10:53")},
		{name: "sorted by protocol and port", objs: []object{list().ports("sip:5060/SCTP", "http:443", "dns:53/UDP", "80"), machine},
			want: served("TCP80>10.0.0.10:80 TCP443>10.0.0.10:8080 UDP53>10.0.0.10:53 SCTP5060>10.0.0.10:5060")},
		{name: "port given twice", objs: []object{list().ports("http:80", "http:80/TCP"), machine}, want: served("TCP80>10.0.0.10:8080")},
		{name: "65535 is a port in a list", objs: []object{list().ports("65535"), vm("a/web", "10.0.0.10").serves("65535")},
			want: served("TCP65535>10.0.0.10:65535")},
		{name: "allowICMP", objs: []object{list().ports("80").icmp(), machine}, want: served("echo>10.0.0.10 TCP80>10.0.0.10:80")},
		{name: "allowICMP is exact", objs: []object{list().ports("80").annotate(AnnotationAllowICMP, "TRUE"), machine}, want: served("TCP80>10.0.0.10:80")},
		{name: "no target resolved", objs: []object{list().ports("80", "smtp:25"), machine}, want: `
			203.0.113.10 a/web TCP80>10.0.0.10:80 @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: NoBackend`},
		{name: "target of another protocol is no target", objs: []object{list().ports("http:80/UDP"), machine}, want: `
			203.0.113.10 a/web guarded @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: NoBackend`},
		{name: "named target resolved per slice", want: served("TCP80>10.0.0.10:8081"), objs: []object{list().ports("http:80"),
			pod("a/p", "10.0.0.10"), slice("a/web", "s1", "10.0.0.99@node-b!notready").serves("http:9999"),
			slice("a/web", "s2", "10.0.0.10@node-a").serves("http:8081")}},
		{name: "slices of one backend add up", want: served("TCP80>10.0.0.10:8080 TCP443>10.0.0.10:8443"),
			objs: []object{list().ports("http:80", "https:443"), pod("a/p", "10.0.0.10"),
				slice("a/web", "s1", "10.0.0.10@node-a").serves("http:8080"), slice("a/web", "s2", "10.0.0.10@node-a").serves("https:8443")}},
	})
}
