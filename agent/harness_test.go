// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// patience is how long a test waits for an effect that has to come; it is generous because a loaded machine is slow, not wrong.
const patience = 10 * time.Second

// objects is a source that a test edits; every agent of the test gets a source of its own that follows it.
type objects struct {
	mu      sync.Mutex
	current nat.Objects
	readers []*memorySource
}

// memorySource hands the changes of objects to one agent.
type memorySource struct {
	of       *objects
	changed  chan struct{}
	pending  nat.Objects
	complete bool
}

// sampleObjects are those of deploy/examples.
func sampleObjects(t testing.TB) *objects {
	t.Helper()
	o, problems, err := manifests.Read("../deploy/examples/vm-instances.yaml")
	require.NoError(t, err)
	require.Empty(t, problems)
	return &objects{current: o}
}

func (o *objects) source() *memorySource {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &memorySource{of: o, changed: make(chan struct{}, 1), pending: nat.NewObjects(), complete: true}
	s.pending.Merge(o.current)
	o.readers = append(o.readers, s)
	s.signal()
	return s
}

func (s *memorySource) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *memorySource) Run(ctx context.Context)  { <-ctx.Done() }
func (s *memorySource) Changed() <-chan struct{} { return s.changed }
func (s *memorySource) Problems() []string       { return []string{} }
func (s *memorySource) Take() (nat.Objects, bool) {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	batch := s.pending
	s.pending = nat.NewObjects()
	return batch, s.complete
}

func (s *memorySource) taken() bool {
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	return s.pending.Len() == 0
}

// change applies a batch, nil for objects that go, and tells every agent.
func (o *objects) change(batch nat.Objects) {
	o.mu.Lock()
	defer o.mu.Unlock()
	apply(o.current.Services, batch.Services)
	apply(o.current.Slices, batch.Slices)
	apply(o.current.Pods, batch.Pods)
	apply(o.current.Nodes, batch.Nodes)
	apply(o.current.Shards, batch.Shards)
	for _, s := range o.readers {
		s.pending.Merge(batch)
		s.signal()
	}
}

func apply[K comparable, T any](to, from map[K]*T) {
	for k, v := range from {
		if v == nil {
			delete(to, k)
		} else {
			to[k] = v
		}
	}
}

// key reads "namespace/name".
func key(s string) nat.Key {
	for i := range s {
		if s[i] == '/' {
			return nat.Key{Namespace: s[:i], Name: s[i+1:]}
		}
	}
	panic("not namespace/name: " + s)
}

// editService changes a copy of a Service.
func (o *objects) editService(name string, edit func(*corev1.Service)) {
	o.mu.Lock()
	s := o.current.Services[key(name)].DeepCopy()
	o.mu.Unlock()
	edit(s)
	batch := nat.NewObjects()
	batch.Services[key(name)] = s
	o.change(batch)
}

func (o *objects) deleteService(name string) {
	batch := nat.NewObjects()
	batch.Services[key(name)] = nil
	o.change(batch)
}

// editSlice changes a copy of an EndpointSlice.
func (o *objects) editSlice(name string, edit func(*discoveryv1.EndpointSlice)) {
	o.mu.Lock()
	s := o.current.Slices[key(name)].DeepCopy()
	o.mu.Unlock()
	edit(s)
	batch := nat.NewObjects()
	batch.Slices[key(name)] = s
	o.change(batch)
}

// expose is the usual way to give a machine an address: a Service with its slices, one for each family of the addresses.
type exposure struct {
	name       string // namespace/name
	age        int    // days before an arbitrary date: the larger, the older
	public     []string
	whole      bool
	icmp       bool
	primary    string // value of the annotation, "" for none
	policy     corev1.ServiceExternalTrafficPolicy
	sources    []string
	ports      []corev1.ServicePort
	targets    map[string]int32 // target port by port name; others keep their number
	backends   []netip.Addr
	node       string
	conditions discoveryv1.EndpointConditions
}

func tcpPort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolTCP}
}

func udpPort(name string, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: port, Protocol: corev1.ProtocolUDP}
}

func (e exposure) objects() nat.Objects {
	o := nat.NewObjects()
	k := key(e.name)
	annotations := map[string]string{nat.AnnotationWholeIP: fmt.Sprint(e.whole)}
	if e.icmp {
		annotations[nat.AnnotationAllowICMP] = "true"
	}
	if e.primary != "" {
		annotations[nat.AnnotationPrimary] = e.primary
	}
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name, Annotations: annotations,
			Labels:            map[string]string{nat.LabelProxyName: "natplane"},
			CreationTimestamp: metav1.NewTime(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC).AddDate(0, 0, -e.age)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports: e.ports, LoadBalancerSourceRanges: e.sources,
		},
	}
	if e.policy != "" {
		s.Spec.ExternalTrafficPolicy = e.policy
	}
	for _, ip := range e.public {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
	}
	o.Services[k] = s
	for _, addr := range e.backends {
		slice := e.slice(k, addr)
		o.Slices[nat.Key{Namespace: k.Namespace, Name: slice.Name}] = slice
	}
	return o
}

func (e exposure) slice(k nat.Key, addr netip.Addr) *discoveryv1.EndpointSlice {
	kind, suffix := discoveryv1.AddressTypeIPv4, "-ipv4"
	if addr.Is6() {
		kind, suffix = discoveryv1.AddressTypeIPv6, "-ipv6"
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name + suffix,
			Labels: map[string]string{discoveryv1.LabelServiceName: k.Name, nat.LabelProxyName: "natplane"},
		},
		AddressType: kind,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{addr.String()}, NodeName: &e.node, Conditions: e.conditions}},
	}
	for _, p := range e.ports {
		port := p.Port
		if target, renamed := e.targets[p.Name]; renamed {
			port = target
		}
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &port, Protocol: &p.Protocol})
	}
	return slice
}

// expose adds or replaces a Service with its slices.
func (o *objects) expose(e exposure) { o.change(e.objects()) }

// pod makes a running Pod that vouches for addresses on a node.
func (o *objects) pod(name, node string, addrs ...netip.Addr) {
	k := key(name)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	batch := nat.NewObjects()
	batch.Pods[k] = p
	o.change(batch)
}

// plane is a topology, the objects that its nodes serve, and the agents on them.
type plane struct {
	t       testing.TB
	topo    *testenv.Topology
	objects *objects
	agents  map[string]*runningAgent
}

type runningAgent struct {
	agent  *agent.Agent
	source *memorySource
	stop   func()
}

// newPlane starts agents on both nodes of a fresh topology with the sample objects.
func newPlane(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	p := emptyPlane(t, topology...)
	p.start("node-a")
	p.start("node-b")
	p.settle()
	return p
}

// emptyPlane has objects and topology, but no agent yet.
func emptyPlane(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTool(t, "nft")
	return &plane{t: t, topo: testenv.NewTopology(t, topology...), objects: sampleObjects(t), agents: map[string]*runningAgent{}}
}

// clusterCIDRs are the ranges of the sample cluster.
func clusterCIDRs() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.96.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48"), netip.MustParsePrefix("fd00:10:96::/112"),
	}
}

func (p *plane) node(name string) *testenv.Node {
	if name == "node-b" {
		return p.topo.NodeB
	}
	return p.topo.NodeA
}

// start runs an agent on a node; edits may change its options.
func (p *plane) start(name string, edits ...func(*agent.Options)) {
	p.t.Helper()
	source := p.objects.source()
	options := agent.Options{
		Policy: nat.Config{
			Node: name, ProxyNames: nat.DefaultProxyNames(), ClusterCIDRs: clusterCIDRs(), ShardCIDRs: nat.DefaultShardCIDRs(),
		},
		NetNS:  p.node(name).NS.FD(),
		Source: source,
		Log:    slog.New(slog.NewTextHandler(testWriter{p.t}, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if auditIsOff() {
		agent.WrapFlows(&options, func(t conntrack.Table) conntrack.Table { return blindTable{t} })
	}
	for _, edit := range edits {
		edit(&options)
	}
	a, err := agent.New(options)
	require.NoError(p.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			require.NoError(p.t, <-ended)
		})
	}
	p.t.Cleanup(stop)
	p.agents[name] = &runningAgent{agent: a, source: source, stop: stop}
}

// stop ends the agent of a node; its translation stays.
func (p *plane) stop(name string) {
	p.t.Helper()
	p.agents[name].stop()
	p.objects.forget(p.agents[name].source)
	delete(p.agents, name)
}

func (o *objects) forget(s *memorySource) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, r := range o.readers {
		if r == s {
			o.readers = append(o.readers[:i], o.readers[i+1:]...)
			return
		}
	}
}

// settle returns when every agent has programmed what the objects say now and has audited the flows.
func (p *plane) settle() {
	p.t.Helper()
	for name := range maps.Keys(p.agents) {
		p.settleNode(name)
	}
}

func (p *plane) settleNode(name string) {
	p.t.Helper()
	r := p.agents[name]
	testenv.Eventually(p.t, patience, name+" settles", func() error {
		if !r.source.taken() {
			return fmt.Errorf("objects are not taken yet")
		}
		// The loop answers between passes, so what was taken before is programmed now.
		if _, err := r.agent.Plan(context.Background()); err != nil {
			return err
		}
		if h := r.agent.Health(); !h.Ready {
			return fmt.Errorf("not ready: %+v", h)
		}
		if s := r.agent.AuditStats(); s.Pending > 0 {
			return fmt.Errorf("audit pending: %+v", s)
		}
		return nil
	})
}

// testWriter shows warnings of the agents with the test that caused them.
type testWriter struct{ t testing.TB }

func (w testWriter) Write(b []byte) (int, error) {
	w.t.Logf("%s", b)
	return len(b), nil
}
