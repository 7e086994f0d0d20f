// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
)

var update = flag.Bool("update", false, "rewrite testdata with what the code says")

// verdictCase is a situation whose verdicts are in testdata/verdicts.txt.
type verdictCase struct {
	name string
	objs []object
}

func verdictCases() []verdictCase {
	whole := func(name string) svcBuilder { return svc(name).whole().ip("203.0.113.10") }
	machine := vm("a/web", "10.0.0.10").serves("80", "https:8443")
	return []verdictCase{
		{"programmed, whole", []object{whole("a/web"), machine}},
		{"programmed, ports of two addresses", []object{svc("a/web").ip("203.0.113.10", "203.0.113.11").ports("80"), machine}},
		{"programmed, with refusals beside", []object{whole("a/web"), machine, slice("a/web", "hand", "10.0.0.99@node-a", "127.0.0.1@node-a", "10.0.0.98")}},
		{"no address", []object{svc("a/web").whole(), machine}},
		{"invalid addresses", []object{whole("a/web").ip("203.0.113.011", "::ffff:203.0.113.12"), machine}},
		{"not permitted", []object{svc("a/web").whole().ip("198.51.100.1", "10.0.0.10", "10.244.1.9", "203.0.113.10"), machine,
			node("node-a", "198.51.100.1").pods("10.244.1.0/24")}},
		{"address conflict", []object{whole("a/web"), whole("b/old").age(1), machine}},
		{"address conflict on two addresses", []object{whole("a/web").ip("203.0.113.11"), whole("b/old").ip("203.0.113.11").age(1), machine}},
		{"whole against ports", []object{whole("a/web"), svc("b/old").ip("203.0.113.10").ports("80").age(1), machine}},
		{"port conflict with two owners", []object{svc("a/web").ip("203.0.113.10").ports("22", "80", "https:443"), machine,
			svc("b/one").ip("203.0.113.10").ports("80").age(2), svc("b/two").ip("203.0.113.10").ports("22", "25").age(1)}},
		{"no ports on two addresses", []object{svc("a/web").ip("203.0.113.10", "203.0.113.11").ports("80/ICMP"), machine}},
		{"several backends", []object{whole("a/web"), machine, vm("a/web", "10.0.0.11"), slice("a/web", "hand", "127.0.0.1@node-a")}},
		{"unverified", []object{whole("a/web"), slice("a/web", "hand", "10.0.0.99@node-a", "10.0.0.98@node-a")}},
		{"FQDN slice", []object{whole("a/web"), slice("a/web", "names", "x@node-a").family(discoveryv1.AddressTypeFQDN)}},
		{"no backend", []object{whole("a/web")}},
		{"no backend for IPv6", []object{whole("a/web").ip("2001:db8:f::10"), machine}},
		{"elsewhere", []object{whole("a/web"), vm("a/web", "10.0.0.10").on("node-b")}},
		{"better elsewhere", []object{whole("a/web"), machine.ranked("serving"), vm("a/web", "10.0.0.10").on("node-b")}},
		{"not ready", []object{svc("a/web").ip("203.0.113.10").ports("80"), machine.ranked("notready")}},
		{"not ready, and not the primary", []object{svc("a/web").ip("203.0.113.10").ports("80").primary("false"), machine.ranked("notready")}},
		{"no target at all", []object{svc("a/web").ip("203.0.113.10").ports("smtp:25"), machine}},
		{"only a hostname", []object{svc("a/web").whole().hostname("lb.example"), machine}},
		{"port without a protocol", []object{svc("a/web").ip("203.0.113.10").ports("0", "80"), machine}},
		{"no target", []object{svc("a/web").ip("203.0.113.10").ports("80", "smtp:25"), machine}},
		{"source range that is none", []object{whole("a/web").sources("198.51.100.0/24", "everybody"), machine}},
		{"primary of two", []object{whole("a/web"), machine, svc("a/second").whole().ip("203.0.113.9").age(1), vm("a/second", "10.0.0.10")}},
	}
}

// TestVerdicts compares what operators read with testdata/verdicts.txt; -update rewrites it.
func TestVerdicts(t *testing.T) {
	var b strings.Builder
	for _, c := range verdictCases() {
		fmt.Fprintf(&b, "# %s\n", c.name)
		_, verdicts := plan(t, "node-a", c.objs...)
		for _, v := range verdicts {
			fmt.Fprintf(&b, "%s programmed=%t %s\n", v.Key(), v.Programmed, v.Reason)
			for part := range strings.SplitSeq(v.Message, "; ") {
				fmt.Fprintf(&b, "    %s\n", part)
			}
			fmt.Fprintf(&b, "  holds %v, egress %v, reporter %s\n", v.Addresses, v.PrimaryEgress, v.Reporter)
		}
	}
	file := filepath.Join("testdata", "verdicts.txt")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		require.Fail(t, "verdicts changed (-want +got), run with -update if they are right:\n"+diff)
	}
}

// TestVerdictsSayEachThingOnceAndName holds for every situation of the golden file.
func TestVerdictsSayEachThingOnceAndName(t *testing.T) {
	for _, c := range verdictCases() {
		_, verdicts := plan(t, "node-a", c.objs...)
		for _, v := range verdicts {
			seen := map[string]bool{}
			for part := range strings.SplitSeq(v.Message, "; ") {
				require.NotEmpty(t, part, c.name)
				require.False(t, seen[part], "%s: %s says twice: %s", c.name, v.Key(), part)
				seen[part] = true
			}
			require.Equal(t, v.Reason == ReasonProgrammed, v.Programmed, c.name)
			require.NotNil(t, v.Addresses, "a list, not null, in JSON")
			require.NotNil(t, v.PrimaryEgress, "a list, not null, in JSON")
		}
	}
}

func TestConflictsNameEveryOwnerAndTheRemedy(t *testing.T) {
	for _, c := range verdictCases() {
		_, verdicts := plan(t, "node-a", c.objs...)
		for _, v := range verdicts {
			if v.Reason != ReasonAddressConflict && v.Reason != ReasonPortConflict {
				continue
			}
			require.Contains(t, v.Message, "older Service b/", c.name)
			require.Contains(t, v.Message, "give this one another", c.name)
		}
	}
	_, verdicts := plan(t, "node-a", svc("a/web").ip("203.0.113.10").ports("22", "80"),
		svc("b/one").ip("203.0.113.10").ports("80").age(2), svc("b/two").ip("203.0.113.10").ports("22").age(1))
	message := verdictOf(t, verdicts, "a/web").Message
	require.Contains(t, message, "22/TCP of 203.0.113.10 belongs to the older Service b/two")
	require.Contains(t, message, "80/TCP of 203.0.113.10 belongs to the older Service b/one")
}

// TestReasonsInTheOrderOfMending: with several faults the first to mend gives the reason, and the message tells all.
func TestReasonsInTheOrderOfMending(t *testing.T) {
	_, verdicts := plan(t, "node-a", node("node-a", "198.51.100.1"),
		svc("a/web").whole().ip("203.0.113.10", "203.0.113.11", "bad", "198.51.100.1", "2001:db8:f::10"),
		svc("b/old").whole().ip("203.0.113.11").age(1), vm("a/web", "10.0.0.10"))
	v := verdictOf(t, verdicts, "a/web")
	require.Equal(t, ReasonInvalidAddress, v.Reason)
	at := 0
	for _, part := range []string{`"bad"`, "198.51.100.1 is an address of node node-a", "203.0.113.11 belongs to the older Service b/old",
		"2001:db8:f::10 has no IPv6 endpoint", "programmed: 203.0.113.10 to 10.0.0.10"} {
		i := strings.Index(v.Message[at:], part)
		require.GreaterOrEqual(t, i, 0, "%q after %q in %q", part, v.Message[:at], v.Message)
		at += i
	}
}

// TestReporterIsTheSameOnEveryNode: exactly one node writes the status of a Service (R20).
func TestReporterIsTheSameOnEveryNode(t *testing.T) {
	nodes := []object{node("node-a", "198.51.100.1"), node("node-b", "198.51.100.2"), node("node-c", "198.51.100.3")}
	web := svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10")
	for name, c := range map[string]struct {
		objs []object
		want string
	}{
		"hosting node":                {[]object{web, vm("a/web", "10.0.0.10").on("node-b")}, "node-b"},
		"no backend":                  {[]object{web}, "node-a"},
		"two best nodes":              {[]object{web, vm("a/web", "10.0.0.10").on("node-c"), vm("a/web", "10.0.0.10").on("node-b")}, "node-b"},
		"better ranked":               {[]object{web, vm("a/web", "10.0.0.10").on("node-c"), vm("a/web", "10.0.0.10").on("node-b").ranked("serving")}, "node-c"},
		"ambiguous":                   {[]object{web, vm("a/web", "10.0.0.10").on("node-c"), vm("a/web", "10.0.0.11").on("node-b")}, "node-b"},
		"nobody vouches":              {[]object{web, slice("a/web", "s", "10.0.0.10@node-b")}, "node-b"},
		"node address as endpoint":    {[]object{web, slice("a/web", "s", "198.51.100.3@node-c")}, "node-c"},
		"no nodeName":                 {[]object{web, slice("a/web", "s", "10.0.0.10")}, "node-a"},
		"IPv6 only":                   {[]object{web, vm("a/web", "fd00::10").on("node-c")}, "node-c"},
		"families on different nodes": {[]object{web, vm("a/web", "fd00::10").on("node-b"), vm("a/web", "10.0.0.10").on("node-c")}, "node-c"},
		"conflict":                    {[]object{web, vm("a/web", "10.0.0.10").on("node-c"), svc("b/old").whole().ip("203.0.113.10").age(2)}, "node-c"},
	} {
		for _, on := range []string{"node-a", "node-b", "node-c"} {
			_, verdicts := plan(t, on, append(nodes, c.objs...)...)
			require.Equal(t, c.want, verdictOf(t, verdicts, "a/web").Reporter, "%s seen from %s", name, on)
		}
	}
	_, verdicts := plan(t, "node-b", web)
	require.Equal(t, "node-b", verdictOf(t, verdicts, "a/web").Reporter, "no Node objects: the node itself")
}
