// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// TestNeverCaptured is the end of R7.
func TestNeverCaptured(t *testing.T) {
	refused := "a/web: NotPermitted"
	at := func(a string) []object {
		return []object{svc("a/web").whole().ip(a), vm("a/web", "10.0.0.10", "fd00::10")}
	}
	with := func(a string, objs ...object) []object { return append(at(a), objs...) }
	runRows(t, []row{
		{name: "own node", objs: with("203.0.113.10", node("node-a", "203.0.113.10")), want: refused},
		{name: "another node", objs: with("203.0.113.10", node("node-b", "203.0.113.10")), want: refused},
		{name: "second address of a node", objs: with("2001:db8::1", node("node-b", "203.0.113.1", "host.example", "2001:db8::1")), want: refused},
		{name: "interface", objs: at("203.0.113.10"), facts: Facts{Addresses: prefixes("203.0.113.10/24")}, want: refused},
		{name: "neighbour of the interface", objs: at("203.0.113.10"), facts: Facts{Addresses: prefixes("203.0.113.1/24")}, want: servedWhole},
		{name: "announced on an interface as /32", objs: at("203.0.113.10"), facts: Facts{Addresses: prefixes("203.0.113.10/32")}, want: servedWhole},
		{name: "/32 of the node itself", objs: with("203.0.113.10", node("node-a", "203.0.113.10")),
			facts: Facts{Addresses: prefixes("203.0.113.10/32")}, want: refused},
		{name: "pod range of a node", objs: with("10.244.1.255", node("node-b").pods("10.244.0.0/24", "10.244.1.0/24")), want: refused},
		{name: "beside the pod range", objs: with("203.0.113.10", node("node-b").pods("203.0.113.0/29")), want: servedWhole},
		{name: "pod range with host bits", objs: with("10.244.1.1", node("node-b").pods("10.244.1.77/24")), want: refused},
		{name: "IPv6 pod range", objs: with("fd00:10::9", node("node-b").pods("fd00:10::/64")), want: refused},
		{name: "--cluster-cidr", objs: at("10.96.0.1"), config: func(c *Config) { c.ClusterCIDRs = prefixes("10.96.0.0/12") }, want: refused},
		{name: "first of --cluster-cidr", objs: at("10.96.0.0"), config: func(c *Config) { c.ClusterCIDRs = prefixes("10.96.0.0/12") }, want: refused},
		{name: "last of --cluster-cidr", objs: at("10.111.255.255"), config: func(c *Config) { c.ClusterCIDRs = prefixes("10.96.0.0/12") }, want: refused},
		{name: "Pod on this node", objs: with("10.9.9.9", pod("z/other", "10.9.9.9")), want: refused},
		{name: "own endpoint here", objs: at("10.0.0.10"), want: refused},
		{name: "own endpoint elsewhere", objs: []object{svc("a/web").whole().ip("10.0.0.10"), vm("a/web", "10.0.0.10").on("node-b")}, want: refused},
		{name: "own endpoint without a Pod", objs: []object{svc("a/web").whole().ip("10.0.0.10"), slice("a/web", "s", "10.0.0.10@node-a")}, want: refused},
		{name: "endpoint of another Service does not take it away", want: servedWhole + "\nb/x: NoAddress",
			objs: with("203.0.113.10", svc("b/x").whole(), slice("b/x", "s", "203.0.113.10@node-b"))},
		{name: "API server", objs: at("203.0.113.10"), config: func(c *Config) { c.Reserved = []netip.Addr{addr("203.0.113.10")} }, want: refused},
		{name: "outside --public-cidr", objs: at("203.0.113.10"), config: func(c *Config) { c.PublicCIDRs = prefixes("192.0.2.0/24", "2001:db8::/32") }, want: refused},
		{name: "inside --public-cidr", objs: at("203.0.113.10"), config: func(c *Config) { c.PublicCIDRs = prefixes("2001:db8::/32", "203.0.113.8/30") }, want: servedWhole},
		{name: "--public-cidr of one family closes the other", objs: at("203.0.113.10"), config: func(c *Config) { c.PublicCIDRs = prefixes("::/0") }, want: refused},
		{name: "--public-cidr opens no node address", objs: with("203.0.113.10", node("node-b", "203.0.113.10")),
			config: func(c *Config) { c.PublicCIDRs = prefixes("0.0.0.0/0") }, want: refused},
		{name: "one refused, one served", objs: []object{svc("a/web").whole().ip("203.0.113.10", "198.51.100.1"), vm("a/web", "10.0.0.10"), node("node-a", "198.51.100.1")}, want: `
			203.0.113.10 a/web whole>10.0.0.10 @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: NotPermitted`},
	})
}

// TestGuardrailsFollowTheirObjects: what becomes forbidden is given up at once, and comes back.
func TestGuardrailsFollowTheirObjects(t *testing.T) {
	free := servedWhole
	refused := "a/web: NotPermitted"
	nodeGone := NewObjects()
	nodeGone.Nodes["node-b"] = nil
	podGone := NewObjects()
	podGone.Pods[keyOf("z/p")] = nil
	e := NewEngine(testConfig("node-a"), nil)
	for _, step := range []struct {
		name  string
		batch Objects
		facts Facts
		want  string
	}{
		{"start", objects(svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10")), Facts{}, free},
		{"node gets the address", objects(node("node-b", "203.0.113.10")), Facts{}, refused},
		{"node loses it", objects(node("node-b", "203.0.113.11")), Facts{}, free},
		{"node gets it in a range", objects(node("node-b").pods("203.0.113.0/24")), Facts{}, refused},
		{"node is deleted", nodeGone, Facts{}, free},
		{"interface gets it", NewObjects(), Facts{Addresses: prefixes("203.0.113.10/24")}, refused},
		{"interface loses it", NewObjects(), Facts{}, free},
		{"a Pod gets it", objects(pod("z/p", "203.0.113.10")), Facts{}, refused},
		{"the Pod ends", objects(pod("z/p", "203.0.113.10").phase("Succeeded")), Facts{}, free},
		{"the Pod runs again", objects(pod("z/p", "203.0.113.10")), Facts{}, refused},
		{"the Pod is deleted", podGone, Facts{}, free},
		{"endpoint becomes a node", objects(node("node-b", "10.0.0.10")), Facts{}, "203.0.113.10 a/web guarded\na/web: BackendUnverified"},
		{"and not any more", nodeGone, Facts{}, free},
	} {
		e.Apply(step.batch, step.facts)
		checkInvariants(t, e.State())
		t.Run(step.name, func(t *testing.T) { requireText(t, step.want, describe(e.State(), e.Verdicts())) })
	}
}

func hostText(list []NamedRange) []string {
	var out []string
	for _, r := range list {
		out = append(out, r.String()+" "+r.Reason)
	}
	return out
}

// TestHost is what R9 and R10 need of the node as a whole.
func TestHost(t *testing.T) {
	c := testConfig("node-a")
	c.ClusterCIDRs = prefixes("10.96.0.0/12", "10.244.0.0/16", "fd00:10::/32")
	c.MasqueradeCIDRs = prefixes("100.64.0.0/16", "198.51.100.0/31")
	facts := Facts{Addresses: prefixes("198.51.100.1/24", "10.244.1.1/24", "203.0.113.10/32"), Uplinks: []string{"eth0", "eth1"}}
	single := node("node-c", "198.51.100.3")
	single.Spec.PodCIDR = "10.245.0.0/24" // older API: one range, not in the list
	s, _ := Build(c, objects(node("node-b", "198.51.100.2", "2001:db8::2").pods("10.244.2.0/24", "nonsense", "fd00:11::/64"), single), facts)
	checkInvariants(t, s)
	require.Equal(t, []string{
		"10.96.0.0/12 --cluster-cidr", "10.244.0.0/16 --cluster-cidr", "10.245.0.0/24 pods of node node-c", "198.51.100.1 an address of this node",
		"198.51.100.2 an address of node node-b", "198.51.100.3 an address of node node-c", "2001:db8::2 an address of node node-b",
		"fd00:10::/32 --cluster-cidr", "fd00:11::/64 pods of node node-b",
	}, hostText(s.Host.Cluster))
	require.Equal(t, []string{
		"10.244.1.1 an address of this node", "100.64.0.0/16 --masquerade-source-cidr", "198.51.100.0/31 --masquerade-source-cidr",
		"198.51.100.2 an address of node node-b", "198.51.100.3 an address of node node-c", "2001:db8::2 an address of node node-b",
	}, hostText(s.Host.Masquerade))
	require.Equal(t, []string{"eth0", "eth1"}, s.Host.Uplinks)
	require.Equal(t, Shard{}, s.Host.Shard)
}

// TestNodeAddressIsWhatBothSaysAndHas: an InternalIP of the Node object that is on an interface of the node.
func TestNodeAddressIsWhatBothSaysAndHas(t *testing.T) {
	a := node("node-a", "198.51.100.9", "198.51.100.1", "2001:db8::1")
	a.Status.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeExternalIP, Address: "203.0.113.1"}}, a.Status.Addresses[1:]...)
	for name, row := range map[string]struct {
		facts []string
		four  string
		six   string
	}{
		"both families":       {[]string{"203.0.113.1/24", "198.51.100.1/32", "2001:db8::1/64"}, "198.51.100.1", "2001:db8::1"},
		"one on an interface": {[]string{"198.51.100.2/24", "2001:db8::1/128"}, "", "2001:db8::1"},
		"nothing known":       {nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s, _ := Build(testConfig("node-a"), objects(a, node("node-b", "198.51.100.2")), Facts{Addresses: prefixes(row.facts...)})
			text := func(addr netip.Addr) string {
				if !addr.IsValid() {
					return ""
				}
				return addr.String()
			}
			require.Equal(t, row.four, text(s.Host.IPv4))
			require.Equal(t, row.six, text(s.Host.IPv6))
		})
	}
}

func TestWorkloadsChangeTheHostAlone(t *testing.T) {
	e := NewEngine(testConfig("node-a"), nil)
	require.NotPanics(t, func() { e.SetWorkloads([]string{"early"}) }, "before the first batch")
	first := e.Apply(NewObjects(), Facts{Uplinks: []string{"eth0"}})
	require.Nil(t, first.Delta.Host.Old)
	require.Equal(t, []string{"early"}, first.Delta.Host.New.Workloads)
	names := []string{"veth1", "veth2"}
	change := e.SetWorkloads(names)
	names[0] = "scribbled"
	require.Equal(t, []string{"veth1", "veth2"}, e.State().Host.Workloads, "kept by value")
	require.Equal(t, []string{"early"}, change.Old.Workloads)
	require.Equal(t, []string{"veth1", "veth2"}, change.New.Workloads)
	require.Nil(t, e.SetWorkloads([]string{"veth1", "veth2"}))
	require.True(t, e.Apply(NewObjects(), Facts{Uplinks: []string{"eth0"}}).Delta.Empty())
	uplinks := []string{"eth0"}
	require.True(t, e.Apply(NewObjects(), Facts{Uplinks: uplinks}).Delta.Empty())
	uplinks[0] = "eth9"
	require.Equal(t, []string{"eth0"}, e.State().Host.Uplinks, "kept by value")
	require.NotNil(t, e.Apply(NewObjects(), Facts{Uplinks: uplinks}).Delta.Host, "a list used again is compared by value")
	moved := e.Apply(NewObjects(), Facts{Uplinks: []string{"eth1"}})
	require.Equal(t, []string{"eth1"}, moved.Delta.Host.New.Uplinks)
	require.Equal(t, []string{"veth1", "veth2"}, moved.Delta.Host.New.Workloads)
}
