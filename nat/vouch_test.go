// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// vouched has a node vouch for addresses, in the text of the condition.
func (b svcBuilder) vouched(node, addrs string) svcBuilder {
	return b.condition(VouchPrefix+node, metav1.ConditionTrue, addrs)
}

func (b svcBuilder) condition(name string, status metav1.ConditionStatus, message string) svcBuilder {
	b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{Type: name, Status: status, Reason: ReasonPodFound, Message: message})
	return b
}

func (b nodeBuilder) labelled(key, value string) nodeBuilder {
	b.Labels = map[string]string{key: value}
	return b
}

func vouchedOnly(c *Config) { c.VouchedOnly = true }

// TestMachinesOfOtherNodes is policy Cluster seen from node-a, while the machine is on node-b.
func TestMachinesOfOtherNodes(t *testing.T) {
	whole := func() svcBuilder { return svc("a/web").whole().ip("203.0.113.10").spread() }
	machine := vm("a/web", "10.0.0.10").on("node-b")
	nodes := []object{node("node-a", "198.51.100.1"), node("node-b", "198.51.100.2")}
	from := func(objs ...object) []object { return append(objs, nodes...) }
	served := "203.0.113.10 a/web elsewhere whole>10.0.0.10\na/web: Programmed"
	refused := "203.0.113.10 a/web guarded\na/web: BackendUnverified"
	runRows(t, []row{
		{name: "vouched for", config: vouchedOnly, want: served, objs: from(whole().vouched("node-b", "10.0.0.10"), machine)},
		{name: "among others", config: vouchedOnly, want: served, objs: from(whole().vouched("node-b", "10.0.0.9, 10.0.0.10, fd00::10"), machine)},
		{name: "EndpointSlices are believed", want: served, objs: from(whole(), machine)},
		{name: "nobody vouches", config: vouchedOnly, want: refused, objs: from(whole(), machine)},
		{name: "another node vouches", config: vouchedOnly, want: refused, objs: from(whole().vouched("node-c", "10.0.0.10"), machine)},
		{name: "for another address", config: vouchedOnly, want: refused, objs: from(whole().vouched("node-b", "10.0.0.1, 10.0.0.100"), machine)},
		{name: "no longer", config: vouchedOnly, want: refused,
			objs: from(whole().condition(VouchPrefix+"node-b", metav1.ConditionFalse, "10.0.0.10"), machine)},
		{name: "a condition of others", config: vouchedOnly, want: refused,
			objs: from(whole().condition("example.com/node-b", metav1.ConditionTrue, "10.0.0.10"), machine)},
		{name: "in words that mean nothing", config: vouchedOnly, want: refused,
			objs: from(whole().vouched("node-b", "10.0.0.010, ::ffff:10.0.0.10, all,10.0.0.10, "), machine)},
		{name: "the node is gone", config: vouchedOnly, want: refused,
			objs: []object{whole().vouched("node-b", "10.0.0.10"), machine, node("node-a", "198.51.100.1")}},
		{name: "one's own machine needs no word", config: vouchedOnly, want: servedWhole, objs: from(whole(), vm("a/web", "10.0.0.10"))},
		{name: "one's own word is none", config: vouchedOnly, want: refused,
			objs: from(whole().vouched("node-a", "10.0.0.10"), slice("a/web", "hand", "10.0.0.10@node-a"))},
		{name: "the address on two nodes, one of them vouches", config: vouchedOnly, want: served,
			objs: from(whole().vouched("node-c", "10.0.0.10"), machine, vm("a/web", "10.0.0.10").on("node-c"), node("node-c", "198.51.100.3"))},
		{name: "policy Local", config: vouchedOnly, want: "203.0.113.10 a/web guarded\na/web: BackendElsewhere",
			objs: from(svc("a/web").whole().ip("203.0.113.10").vouched("node-b", "10.0.0.10"), machine)},
		{name: "ports", config: vouchedOnly, want: "203.0.113.10 a/web elsewhere TCP80>10.0.0.10:8080\na/web: Programmed",
			objs: from(svc("a/web").ip("203.0.113.10").ports("80").spread().vouched("node-b", "10.0.0.10"), machine.serves("8080"))},
	})
}

// TestANodeVouchesForItsPods: for all that slices list and Pods have, whatever the rank, and for nothing else.
func TestANodeVouchesForItsPods(t *testing.T) {
	web := func() svcBuilder { return svc("a/web").whole().ip("203.0.113.10") }
	for _, c := range []struct {
		name string
		objs []object
		want []netip.Addr
	}{
		{"both families", []object{web().spread(), vm("a/web", "10.0.0.10", "fd00::10")}, addrs("10.0.0.10", "fd00::10")},
		{"the target of a migration before it is ready", []object{web().spread(), vm("a/web", "10.0.0.10").ranked("notready"),
			vm("a/web", "10.0.0.11").on("node-b")}, addrs("10.0.0.10")},
		{"one of two that are ambiguous", []object{web().spread(), vm("a/web", "10.0.0.10"), vm("a/web", "10.0.0.11").on("node-b")}, addrs("10.0.0.10")},
		{"written by hand", []object{web().spread(), slice("a/web", "hand", "10.0.0.10@node-a"), pod("b/other", "10.0.0.10")}, nil},
		{"a machine elsewhere", []object{web().spread(), vm("a/web", "10.0.0.10").on("node-b")}, nil},
		{"policy Local", []object{web(), vm("a/web", "10.0.0.10")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, verdicts := plan(t, "node-a", c.objs...)
			v := verdictOf(t, verdicts, "a/web")
			require.Equal(t, c.want, v.Verified)
			require.Equal(t, []vouch(nil), readVouches(nil))
			var heard []netip.Addr
			for _, word := range readVouches([]metav1.Condition{{Type: VouchPrefix + "node-a", Status: "True", Message: VouchMessage(v.Verified)}}) {
				heard = append(heard, word.addr)
			}
			require.Equal(t, c.want, heard, "what is said is understood")
		})
	}
}

// TestReportersRunAnAgent: where only some nodes run one, none of the others is expected to speak.
func TestReportersRunAnAgent(t *testing.T) {
	edges, err := labels.Parse("edge=true")
	require.NoError(t, err)
	nodes := []object{
		node("node-a", "198.51.100.1"), node("node-b", "198.51.100.2").labelled("edge", "true"), node("node-c", "198.51.100.3").labelled("edge", "true"),
	}
	web := func() svcBuilder { return svc("a/web").whole().ip("203.0.113.10") }
	for _, c := range []struct {
		name     string
		objs     []object
		reporter string
		reason   Reason
	}{
		{"no backend", []object{web()}, "node-b", ReasonNoBackend},
		{"a machine of a node with an agent", []object{web(), vm("a/web", "10.0.0.10").on("node-c")}, "node-c", ReasonElsewhere},
		{"a machine of a node without", []object{web(), vm("a/web", "10.0.0.10")}, "node-b", ReasonNoBackend},
		{"policy Cluster", []object{web().spread(), vm("a/web", "10.0.0.10")}, "node-b", ReasonBackendUnverified},
		{"a node that does not exist", []object{web(), vm("a/web", "10.0.0.10").on("node-0")}, "node-b", ReasonNoBackend},
		{"a node that does not exist and one that does", []object{web(), vm("a/web", "10.0.0.10").on("node-0"), vm("a/web", "10.0.0.10").on("node-c")},
			"node-c", ReasonElsewhere},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, verdicts := row{node: "node-b", objs: append(c.objs, nodes...), config: func(c *Config) {
				c.AgentNodes, c.VouchedOnly = edges, true
			}}.build(t)
			v := verdictOf(t, verdicts, "a/web")
			require.Equal(t, c.reason, v.Reason, v.Message)
			require.Equal(t, c.reporter, v.Reporter)
		})
	}
}
