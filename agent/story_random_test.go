// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/testenv"
)

// The random story can be repeated and prolonged: NATPLANE_TEST_SEED and NATPLANE_TEST_STEPS.
const (
	seedVariable  = "NATPLANE_TEST_SEED"
	stepsVariable = "NATPLANE_TEST_STEPS"
	usualSteps    = 200
)

func fromEnvironment(t testing.TB, variable string, usual uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return usual
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// world makes random changes to few objects, so that they meet each other all the time.
type world struct {
	*rand.Rand
	p       *plane
	publics []int
}

// TestRandomStory: after each of many random changes, the kernel holds what a fresh programming of the same state would write, every flow
// is one that the state would create, and none that it would create was lost.
func TestRandomStory(t *testing.T) {
	t.Parallel()
	seed := fromEnvironment(t, seedVariable, uint64(time.Now().UnixNano()))
	steps := int(fromEnvironment(t, stepsVariable, usualSteps))
	t.Logf("%s=%d", seedVariable, seed)
	p := tenantPlane(t)
	w := &world{Rand: rand.New(rand.NewPCG(seed, 0)), p: p, publics: []int{10, 11, 20, 30, 200}}
	node := p.topo.NodeA.NS
	all := cast{}
	for _, f := range testenv.Families() {
		maps.Copy(all, newCast(f, p.topo, w.publics))
	}
	fresh := testenv.NewT(t, "fresh")
	reference, err := nft.Open(nft.Options{NetNS: fresh.FD(), Unowned: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, reference.Close()) }()

	for n := range steps {
		before := all.alive(t, node)
		what := w.step()
		p.settle()
		state, err := p.agents["node-a"].agent.State(t.Context())
		require.NoError(t, err)
		where := fmt.Sprintf("%s=%d, step %d: %s", seedVariable, seed, n, what)

		require.NoError(t, reference.Remove())
		_, err = reference.Sync(state)
		require.NoError(t, err, where)
		require.Empty(t, cmp.Diff(elements(t, fresh), elements(t, node)), where)
		legal := all.legal(state)
		requireSurvivors(t, where, all, state, before, all.alive(t, node), legal)
		all.enter(t, node, slices.DeleteFunc(legal, func(string) bool { return w.IntN(4) == 0 }))
	}
}

func requireSurvivors(t testing.TB, where string, all cast, state nat.State, before, after map[string]uint32, legal []string) {
	t.Helper()
	index := conntrack.NewIndex(state)
	for name := range after {
		require.Equal(t, conntrack.Legal, index.Judge(all[name], once{}), "%s: %s survived: %v", where, name, all[name])
	}
	for _, name := range legal {
		if id, was := before[name]; was {
			require.Equal(t, id, after[name], "%s: %s was lost: %v", where, name, all[name])
		}
	}
}

// step makes a few changes, at times under an agent that starts anew, and says what it did.
func (w *world) step() string {
	var said []string
	batch := nat.NewObjects()
	for range 1 + w.IntN(3) {
		change := pick(w, []func(nat.Objects) string{w.service, w.service, w.edit, w.edit, w.edit, w.edit, w.slice, w.slice, w.pod, w.shard, w.node})
		said = append(said, change(batch))
	}
	away := w.IntN(20) == 0
	if away {
		said = append(said, "while the agent is away")
		w.p.stop("node-a")
	}
	w.p.objects.change(batch)
	if away {
		w.p.start("node-a")
	}
	return strings.Join(said, ", ")
}

func pick[T any](w *world, list []T) T { return list[w.IntN(len(list))] }

func (w *world) one(n int) bool { return w.IntN(n) == 0 }

func (w *world) serviceName() string { return fmt.Sprintf("%ss%d", tenantNamespace, w.IntN(5)) }

// service replaces a Service with its slices, or deletes it.
func (w *world) service(batch nat.Objects) string {
	name := w.serviceName()
	if w.one(5) {
		batch.Services[key(name)] = nil
		return "delete " + name
	}
	e := exposure{
		name: name, age: w.IntN(3), whole: w.one(2), icmp: w.one(2), primary: pick(w, []string{"", "", "true", "false"}),
		policy: pick(w, []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster}),
		ports:  w.ports(), targets: map[string]int32{"https": 8443}, sources: w.sources(), public: w.addresses(),
	}
	made := e.objects()
	if w.one(8) {
		delete(made.Services[key(name)].Labels, nat.LabelProxyName)
	}
	batch.Merge(made)
	return fmt.Sprintf("%s is %v whole=%t", name, e.public, e.whole)
}

// exposed is a Service with other addresses.
func (w *world) exposed() *corev1.Service {
	e := exposure{name: "any/one", public: w.addresses()}
	return e.objects().Services[key(e.name)]
}

func (w *world) addresses() []string {
	var list []string
	for range 1 + w.IntN(3) {
		list = append(list, public(pick(w, testenv.Families()), pick(w, w.publics)).String())
	}
	return list
}

func (w *world) ports() []corev1.ServicePort {
	return slices.DeleteFunc(everyPort(), func(corev1.ServicePort) bool { return w.one(3) })
}

func (w *world) sources() []string {
	ext, ext2 := w.p.topo.Ext, w.p.topo.Ext2
	return pick(w, [][]string{
		nil, nil, nil, {ext.Addr4().String() + "/32", ext.Addr6().String() + "/128"}, {ext2.Addr4().String() + "/32"},
		{"198.51.100.0/24", "2001:db8:e::/64", "10.244.0.0/16"},
	})
}

// edit changes a Service that is there and leaves its endpoints alone.
func (w *world) edit(batch nat.Objects) string {
	name := w.serviceName()
	before := w.p.objects.current.Services[key(name)]
	if before == nil {
		return "nothing"
	}
	s := before.DeepCopy()
	switch w.IntN(6) {
	case 0:
		s.Annotations[nat.AnnotationWholeIP] = pick(w, []string{"true", "false"})
	case 1:
		s.Spec.LoadBalancerSourceRanges = w.sources()
	case 2:
		s.Annotations[nat.AnnotationPrimary] = pick(w, []string{"true", "false"})
	case 3:
		s.Annotations[nat.AnnotationAllowICMP] = pick(w, []string{"true", "false"})
	case 4:
		s.Status.LoadBalancer = w.exposed().Status.LoadBalancer
	default:
		s.Spec.Ports = w.ports()
	}
	batch.Services[key(name)] = s
	return "edit " + name
}

// slice gives a Service endpoints in one family, or takes them away.
func (w *world) slice(batch nat.Objects) string {
	name, f := w.serviceName(), pick(w, testenv.Families())
	sliceKey := key(name + "-" + sliceSuffix(f))
	if w.one(6) {
		batch.Slices[sliceKey] = nil
		return "delete slice of " + name
	}
	e := exposure{name: name, ports: everyPort(), targets: map[string]int32{"https": 8443}}
	var endpoints []discoveryv1.Endpoint
	where := ""
	for range 1 + w.IntN(5)/4 { // seldom two, which is ambiguous
		m, ready := w.machine(), !w.one(4)
		e.node, e.conditions = m.Node.Name, discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready}
		endpoints = append(endpoints, e.slice(key(name), m.Addr(f)).Endpoints...)
		where += " " + m.Name
	}
	slice := e.slice(key(name), w.p.topo.Web.Addr(f))
	slice.Endpoints = endpoints
	batch.Slices[sliceKey] = slice
	return name + " at" + where
}

// machine is most often one of the node under test.
func (w *world) machine() *testenv.Machine {
	return pick(w, []*testenv.Machine{w.p.topo.Web, w.p.topo.Web, w.p.topo.DB, w.p.topo.DB, w.p.topo.Mail, w.p.topo.Pod})
}

func everyPort() []corev1.ServicePort {
	return []corev1.ServicePort{tcpPort("http", 80), tcpPort("https", 443), udpPort("dns", 53)}
}

// pod starts, ends or forgets the Pod of a machine.
func (w *world) pod(batch nat.Objects) string {
	m := w.machine()
	k := key(tenantNamespace + m.Name)
	if w.one(6) {
		batch.Pods[k] = nil
		return "delete pod " + m.Name
	}
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.Spec.NodeName = k.Namespace, k.Name, m.Node.Name
	p.Status.Phase = pick(w, []corev1.PodPhase{corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodSucceeded})
	for _, a := range m.Addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	batch.Pods[k] = p
	return fmt.Sprintf("pod %s %s", m.Name, p.Status.Phase)
}

func (w *world) shard(batch nat.Objects) string {
	o := shard(pick(w, []int{200, 200, 30}))
	for k, s := range o.Shards {
		switch w.IntN(4) {
		case 0:
			batch.Shards[k] = nil
			return "delete shard"
		case 1:
			s.Spec.TargetRef.Name = "node-b"
		}
		batch.Shards[k] = s
		return fmt.Sprintf("shard %s at %s", s.Spec.ShardAddressIPv4, s.Spec.TargetRef.Name)
	}
	return ""
}

// node adds the far range to the cluster, or takes it away.
func (w *world) node(batch nat.Objects) string {
	batch.Merge(farNode())
	if w.one(2) {
		batch.Nodes["node-c"] = nil
		return "delete node-c"
	}
	return "node-c"
}
