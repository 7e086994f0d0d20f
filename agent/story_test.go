// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

var update = flag.Bool("update", false, "write testdata/story/*.txt from what the kernel holds")

// step is a change of the story.
type step struct {
	name   string
	change func(*plane)
}

// story is the life of a node, in the order in which it happens.
func story() []step {
	web := exposure{name: "tenant/web", age: 30, public: dual(10), whole: true, node: "node-a"}
	second := exposure{name: "tenant/second", age: 20, public: dual(11), node: "node-a", icmp: true,
		ports: []corev1.ServicePort{tcpPort("https", 443), udpPort("dns", 53)}, targets: map[string]int32{"https": 8443}}
	db := exposure{name: "tenant/db", age: 10, public: dual(20), node: "node-a", ports: []corev1.ServicePort{tcpPort("http", 80)}}
	with := func(p *plane, e exposure, m *testenv.Machine) {
		e.backends = m.Addrs
		p.objects.expose(e)
	}
	return []step{
		{"nothing is exposed", func(*plane) {}},
		{"web gets a whole address", func(p *plane) { with(p, web, p.topo.Web) }},
		{"web gets a second address", func(p *plane) { with(p, second, p.topo.Web) }},
		{"db gets an address", func(p *plane) { with(p, db, p.topo.DB) }},
		{"db admits one client only", func(p *plane) {
			p.objects.editService(db.name, func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = []string{p.topo.Ext.Addr4().String() + "/32", p.topo.Ext.Addr6().String() + "/128"}
			})
		}},
		{"a port of the second address is retargeted", func(p *plane) {
			retargeted := second
			retargeted.targets = map[string]int32{"https": 9443}
			with(p, retargeted, p.topo.Web)
		}},
		{"the other port goes", func(p *plane) {
			shorter := second
			shorter.ports = second.ports[:1]
			with(p, shorter, p.topo.Web)
		}},
		{"the second address becomes the primary", func(p *plane) {
			p.objects.editService(second.name, annotate(nat.AnnotationPrimary, "true"))
		}},
		{"the first becomes a list", func(p *plane) {
			listed := web
			listed.whole, listed.ports = false, []corev1.ServicePort{tcpPort("http", 80)}
			with(p, listed, p.topo.Web)
		}},
		{"a shard comes", func(p *plane) { p.objects.change(shard(200)) }},
		{"the addresses of web move to db", func(p *plane) {
			for _, e := range []exposure{web, second} {
				with(p, e, p.topo.DB)
			}
		}},
		{"the far range joins the cluster", func(p *plane) { p.objects.change(farNode()) }},
		{"one address leaves the status", func(p *plane) {
			p.objects.editService(web.name, func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress[:1] })
		}},
		{"the endpoint of db stops serving", func(p *plane) {
			no := false
			p.objects.editSlice(db.name+"-ipv4", func(s *discoveryv1.EndpointSlice) {
				s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no}
			})
		}},
		{"the shard goes while the agent is away", func(p *plane) {
			gone := nat.NewObjects()
			for k := range shard(200).Shards {
				gone.Shards[k] = nil
			}
			p.stop("node-a")
			p.objects.change(gone)
			p.start("node-a")
		}},
		{"everything goes", func(p *plane) {
			for _, e := range []exposure{web, second, db} {
				p.objects.deleteService(e.name)
			}
		}},
	}
}

// farNode is a node whose pods have the far range.
func farNode() nat.Objects {
	o := nat.NewObjects()
	n := &corev1.Node{}
	n.Name = "node-c"
	n.Spec.PodCIDRs = []string{"10.250.0.0/16", "fd00:10:250::/64"}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.3"}}
	o.Nodes["node-c"] = n
	return o
}

// TestStory applies the states in order on one kernel. Before each step every flow of the cast that the state would create is there; after
// it, elements and surviving flows are as the file says.
func TestStory(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	node := p.topo.NodeA.NS
	all := cast{}
	for _, f := range testenv.Families() {
		maps.Copy(all, newCast(f, p.topo, []int{10, 11, 20, 200}))
	}
	for i, s := range story() {
		state, err := p.agents["node-a"].agent.State(t.Context())
		require.NoError(t, err)
		all.enter(t, node, all.legal(state))
		before := all.alive(t, node)
		s.change(p)
		p.settle()
		got := scene(s.name, elements(t, node), before, all.alive(t, node))

		file := filepath.Join("testdata", "story", fmt.Sprintf("%02d-%s.txt", i, strings.ReplaceAll(s.name, " ", "-")))
		if *update {
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(string(want), got), "%s: run the test with -update if this is meant", s.name)
	}
}

// scene is the text of one step.
func scene(name, elements string, before, after map[string]uint32) string {
	var cut, stay []string
	for _, flow := range slices.Sorted(maps.Keys(before)) {
		switch id, ok := after[flow]; {
		case !ok:
			cut = append(cut, flow)
		case id != before[flow]:
			stay = append(stay, flow+" (not the same flow)")
		default:
			stay = append(stay, flow)
		}
	}
	return fmt.Sprintf("# %s\n\n%s\n# flows that end\n\n%s\n\n# flows that stay\n\n%s\n",
		name, elements, strings.Join(cut, "\n"), strings.Join(stay, "\n"))
}
