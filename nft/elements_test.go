// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

func TestAddressElements(t *testing.T) {
	svc, other := owner("ns", "svc"), owner("ns", "other")
	public, public6 := ip("203.0.113.1"), ip("2001:db8::1")
	for name, c := range map[string]struct {
		address nat.Address
		want    []string
	}{
		"nowhere": {nat.Address{Public: public, Owner: svc}, []string{`@public4 203.0.113.1 comment "ns/svc"`}},
		"hosted, forwards nothing": {nat.Address{Public: public6, Owner: svc, Hosted: true}, []string{
			`@hosted6 2001:db8::1 comment "ns/svc"`, `@listed6 2001:db8::1 comment "ns/svc"`, `@public6 2001:db8::1 comment "ns/svc"`}},
		"whole": {nat.Address{Public: public, Owner: svc, Hosted: true, Whole: nat.Forward{Backend: ip("10.0.0.1"), Owner: other}}, []string{
			`@hosted4 203.0.113.1 comment "ns/svc"`, `@public4 203.0.113.1 comment "ns/svc"`, `@whole4 203.0.113.1 comment "ns/other" : 10.0.0.1`}},
		"whole elsewhere": {nat.Address{Public: public6, Owner: svc, Elsewhere: true, Whole: nat.Forward{Backend: ip("fd00::1"), Owner: svc}}, []string{
			`@elsewhere6 2001:db8::1 comment "ns/svc"`, `@public6 2001:db8::1 comment "ns/svc"`, `@whole6 2001:db8::1 comment "ns/svc" : fd00::1`}},
		"whole, ranges": {nat.Address{Public: public, Owner: svc,
			Whole: nat.Forward{Backend: ip("10.0.0.1"), Owner: other, Sources: only(span("192.0.2.0/24"), span("198.51.100.7/32"))}}, []string{
			`@allowed4 203.0.113.1 . 192.0.2.0-192.0.2.255 comment "ns/other"`, `@allowed4 203.0.113.1 . 198.51.100.7-198.51.100.7 comment "ns/other"`,
			`@public4 203.0.113.1 comment "ns/svc"`, `@restricted4 203.0.113.1 comment "ns/other"`, `@whole4 203.0.113.1 comment "ns/other" : 10.0.0.1`}},
		"whole, nobody": {nat.Address{Public: public, Owner: svc, Whole: nat.Forward{Backend: ip("10.0.0.1"), Owner: svc, Sources: only()}}, []string{
			`@public4 203.0.113.1 comment "ns/svc"`, `@restricted4 203.0.113.1 comment "ns/svc"`, `@whole4 203.0.113.1 comment "ns/svc" : 10.0.0.1`}},
		"echo, ranges": {nat.Address{Public: public, Owner: svc,
			Echo: nat.Forward{Backend: ip("10.0.0.1"), Owner: svc, Sources: only(span("0.0.0.0/0"))}}, []string{
			`@allowed4 203.0.113.1 . 0.0.0.0-255.255.255.255 comment "ns/svc"`, `@echo4 203.0.113.1 comment "ns/svc" : 10.0.0.1`,
			`@public4 203.0.113.1 comment "ns/svc"`, `@restricted_echo4 203.0.113.1 comment "ns/svc"`}},
		"ports": {nat.Address{Public: public6, Owner: svc, Ports: []nat.Port{
			{Protocol: nat.TCP, Port: 80, Target: target("[fd00::1]:8080"), Owner: svc, Sources: only(span("2001:db8:7::/48"))},
			{Protocol: nat.SCTP, Port: 80, Target: target("[fd00::1]:80"), Owner: other}}}, []string{
			`@allowed_port6 2001:db8::1 . tcp . 80 . 2001:db8:7::-2001:db8:7:ffff:ffff:ffff:ffff:ffff comment "ns/svc"`,
			`@port6 2001:db8::1 . sctp . 80 comment "ns/other" : fd00::1 . 80`, `@port6 2001:db8::1 . tcp . 80 comment "ns/svc" : fd00::1 . 8080`,
			`@public6 2001:db8::1 comment "ns/svc"`, `@restricted_port6 2001:db8::1 . tcp . 80 comment "ns/svc"`}},
	} {
		es, err := addressElements(nil, &c.address)
		require.NoError(t, err, name)
		require.Equal(t, c.want, texts(es), name)
	}
}

func TestBackendElements(t *testing.T) {
	es, err := backendElements(nil, &nat.Backend{Addr: ip("fd00::1"), Owner: owner("a", "b"), Primary: ip("2001:db8::1"), PrimaryOwner: owner("c", "d")})
	require.NoError(t, err)
	require.Equal(t, []string{`@egress6 fd00::1 comment "c/d" : 2001:db8::1`, `@managed6 fd00::1 comment "a/b"`}, texts(es))
	es, err = backendElements(nil, &nat.Backend{Addr: ip("10.0.0.1"), Owner: owner("a", "b"), PrimaryOwner: owner("c", "d")})
	require.NoError(t, err)
	require.Equal(t, []string{`@managed4 10.0.0.1 comment "a/b"`}, texts(es))
}

func TestHostElements(t *testing.T) {
	es, errs := hostElements(nil, &nat.Host{
		Cluster:   []nat.NamedRange{named("why", span("10.0.0.0/8")), named("", span("fd00::/8"))},
		IPv4:      ip("198.51.100.1"),
		Uplinks:   []string{"up0", "up1"},
		Workloads: []string{"va0"},
		Shard:     nat.Shard{Owner: owner("s", "h"), IPv6: ip("2001:db8::5")},

		IdleShards: []nat.OwnedAddress{{Addr: ip("203.0.113.9"), Owner: owner("s", "other")}},
	})
	require.Empty(t, errs)
	require.Equal(t, []string{
		`@cluster4 10.0.0.0-10.255.255.255 comment "why"`, `@cluster6 fd00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff`,
		`@hosted6 2001:db8::5 comment "s/h"`, `@node4 "up0" : 198.51.100.1`, `@node4 "up1" : 198.51.100.1`, `@public4 203.0.113.9 comment "s/other"`, `@public6 2001:db8::5 comment "s/h"`,
		`@shard6 "up0" comment "s/h" : 2001:db8::5`, `@shard6 "up1" comment "s/h" : 2001:db8::5`,
		`@uplink_if "up0"`, `@uplink_if "up1"`, `@workload_if "va0"`,
	}, texts(es))
}

// A bad range or name is left out alone: without the others, in-cluster traffic would be translated.
func TestHostIsJudgedPartByPart(t *testing.T) {
	es, errs := hostElements(nil, &nat.Host{
		Cluster: []nat.NamedRange{named("a", span("10.0.0.0/8")), named("b", span("10.1.0.0/16")), named("c", nat.Range{}),
			named("d", span("fd00::/8")), named("e", nat.Range{From: ip("192.0.2.9"), To: ip("192.0.2.1")})},
		Uplinks: []string{"up0", "a name that is too long", "a/b", ""},
		Shard:   nat.Shard{IPv4: ip("2001:db8::5")},
	})
	require.Len(t, errs, 7)
	require.Equal(t, []string{
		`@cluster4 10.0.0.0-10.255.255.255 comment "a"`, `@cluster6 fd00::-fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff comment "d"`, `@uplink_if "up0"`,
	}, texts(es))
}

func TestInvalidRecords(t *testing.T) {
	whole := func(public, backend string) nat.Address {
		return nat.Address{Public: ip(public), Owner: owner("ns", "svc"), Whole: nat.Forward{Backend: ip(backend), Owner: owner("ns", "svc")}}
	}
	sources := func(r ...nat.Range) nat.Address {
		a := whole("203.0.113.1", "10.0.0.1")
		a.Whole.Sources = only(r...)
		return a
	}
	ports := func(p ...nat.Port) nat.Address {
		return nat.Address{Public: ip("203.0.113.1"), Owner: owner("ns", "svc"), Ports: p}
	}
	both := whole("203.0.113.1", "10.0.0.1")
	both.Echo = both.Whole
	ssh := nat.Port{Protocol: nat.TCP, Port: 22, Target: target("10.0.0.1:22")}
	for why, a := range map[string]nat.Address{
		"no address":             {Owner: owner("ns", "svc")},
		"IPv4 written as IPv6":   whole("::ffff:203.0.113.1", "10.0.0.1"),
		"has a zone":             whole("fe80::1%eth0", "fd00::1"),
		"of the other family":    whole("203.0.113.1", "fd00::1"),
		"both the whole address": both,
		"is empty":               sources(span("192.0.2.9", "192.0.2.1")),
		"overlaps":               sources(span("192.0.2.0/24"), span("192.0.2.128/25")),
		"out of order":           sources(span("192.0.2.0/24"), span("192.0.1.0/24")),
		"other family":           sources(span("2001:db8::/64")),
		"given twice":            ports(ssh, ssh),
		"port 0":                 ports(nat.Port{Protocol: nat.TCP, Port: 22, Target: target("10.0.0.1:0")}),
		"has no ports":           ports(nat.Port{Protocol: 1, Port: 22, Target: target("10.0.0.1:22")}),
	} {
		es, err := addressElements(nil, &a)
		require.ErrorContains(t, err, why)
		require.ErrorContains(t, err, "ns/svc")
		require.Empty(t, es, why)
	}
	for _, b := range []nat.Backend{{}, {Addr: ip("10.0.0.1"), Primary: ip("2001:db8::1")}, {Addr: ip("::ffff:10.0.0.1")}} {
		es, err := backendElements(nil, &b)
		require.Error(t, err)
		require.Empty(t, es)
	}
	a := nat.Address{Public: ip("203.0.113.1")}
	b := nat.Backend{Addr: ip("10.0.0.1")}
	es, errs := stateElements(&nat.State{Addresses: []nat.Address{a, a}, Backends: []nat.Backend{b, b}})
	require.Len(t, errs, 2, "twice")
	require.Len(t, es, 2)
}

func TestComments(t *testing.T) {
	long := strings.Repeat("x", 200)
	for in, want := range map[string]string{
		"":                            "",
		"tenant-a/vm":                 "tenant-a/vm",
		"say \"no\"\n":                "say ?no??",
		"Grüße":                       "Grüße",
		"bad \xff":                    "bad ?",
		long:                          long[:128],
		strings.Repeat("ü", 64) + "ü": strings.Repeat("ü", 64),
		"x" + strings.Repeat("ü", 64): "x" + strings.Repeat("ü", 63),
	} {
		require.Equal(t, want, cleanComment(in))
	}
	// The longest that Kubernetes allows for a Service, and for an object with a name of 253 bytes.
	require.Len(t, comment(owner(long[:63], long[:63])), 127)
	require.Len(t, comment(owner(long[:63], long[:200])), 128)
}

// The number of a set and its definition belong together.
func TestSetsAreInOrder(t *testing.T) {
	require.Len(t, setDefs(), int(numSets))
	for s, name := range map[setID]string{
		port4: "port4", port6: "port6", echo4: "echo4", whole6: "whole6", egress4: "egress4", shard4: "shard4", public6: "public6",
		hosted4: "hosted4", listed4: "listed4", elsewhere6: "elsewhere6", managed4: "managed4", restricted4: "restricted4",
		restrictedEcho4: "restricted_echo4", restrictedPort6: "restricted_port6", allowed4: "allowed4", allowedPort6: "allowed_port6",
		cluster4: "cluster4", masquerade4: "masquerade4", shardSources6: "shard_sources6", uplinkIf: "uplink_if", workloadIf: "workload_if",
	} {
		require.Equal(t, name, setName(s))
	}
	for _, def := range setDefs() {
		require.NotEmpty(t, def.comment)
		require.LessOrEqual(t, len(def.comment), maxComment, def.name)
	}
	for _, c := range newLayout(nat.PortRange{}).chains {
		for i, r := range c.rules {
			require.NotEmpty(t, r.comment, "%s rule %d", c.name, i)
			require.LessOrEqual(t, len(r.comment), maxComment, "%s rule %d", c.name, i)
		}
	}
}
