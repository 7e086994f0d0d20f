// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/agent/cluster"
	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

const (
	tenantA = "tenant-a"
	tenantB = "tenant-b"
	// controllersTake bounds what passes through the API server's real controllers on a busy machine.
	controllersTake = 30 * time.Second
)

// clusterPlane is a topology whose agents follow a real API server with the rights of the deployed agent. The server and the clients of the
// agents are outside of the topology; the kernel of each node is not.
type clusterPlane struct {
	t      testing.TB
	topo   *testenv.Topology
	kube   *kube.Cluster
	access *rest.Config
	agents map[string]*clusterAgent
	// writes counts the status writes of each node.
	writes map[string]*atomic.Int64
}

// clusterAgent is an agent as cmd/natplane wires it.
type clusterAgent struct {
	agent *agent.Agent
	url   string
	stop  func()
}

// newClusterPlane has both Nodes in the API server, and no agent yet.
func newClusterPlane(t testing.TB, topology ...testenv.Option) *clusterPlane {
	t.Helper()
	testenv.RequireRoot(t)
	testenv.RequireTool(t, "nft")
	p := &clusterPlane{t: t, topo: testenv.NewTopology(t, topology...), kube: kube.Start(t), agents: map[string]*clusterAgent{}, writes: map[string]*atomic.Int64{}}
	p.kube.Definition(t, "../deploy/crd/egressshard.yaml")
	for _, n := range []*testenv.Node{p.topo.NodeA, p.topo.NodeB} {
		p.kube.Node(t, n.Name, n.Addr4().String(), n.Addr6().String())
		p.writes[n.Name] = &atomic.Int64{}
	}
	p.access = p.kube.Account(t, "natplane-system", "natplane", "../deploy/base/clusterrole.yaml")
	return p
}

func (p *clusterPlane) startBoth() *clusterPlane {
	p.t.Helper()
	p.start("node-a")
	p.start("node-b")
	return p
}

// start runs an agent on a node and returns when it is ready; edits may change its options.
func (p *clusterPlane) start(node string, edits ...func(*agent.Options)) *clusterAgent {
	p.t.Helper()
	log := slog.New(slog.NewTextHandler(testWriter{p.t}, &slog.HandlerOptions{Level: slog.LevelWarn}))
	a, err := p.run(node, log, edits...)
	require.NoError(p.t, err)
	testenv.Eventually(p.t, controllersTake, node+" is ready", a.ready)
	return a
}

// run starts an agent on a node and does not wait.
func (p *clusterPlane) run(node string, log *slog.Logger, edits ...func(*agent.Options)) (*clusterAgent, error) {
	names := nat.DefaultProxyNames()
	source, err := cluster.Open(cluster.Options{Config: counted(p.access, p.writes[node]), Node: node, ProxyNames: names, Log: log})
	if err != nil {
		return nil, err
	}
	services := status.Options{Client: source.Client(), Services: source, Node: node, Log: log}
	reporter := status.Together{
		Services: status.New(services),
		Vouches:  status.NewVoucher(services),
		Shards:   status.NewShardReporter(status.ShardOptions{Client: source.ShardClient(), Events: source.Client(), Shards: source, Node: node, Log: log}),
	}
	source.OnObserved(reporter.Observe)
	source.OnShardObserved(reporter.Shards.Observe)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	options := agent.Options{
		Policy: nat.Config{
			Node: node, ProxyNames: names, ClusterCIDRs: clusterCIDRs(), ShardCIDRs: nat.DefaultShardCIDRs(),
			Reserved: cluster.ServerAddresses(p.access), VouchedOnly: true,
		},
		NetNS: p.topo.Node(node).NS.FD(), Source: source, Reporter: reporter, HTTP: listener, Log: log,
	}
	for _, edit := range edits {
		edit(&options)
	}
	a := &clusterAgent{url: "http://" + listener.Addr().String()}
	if a.agent, err = agent.New(options); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- a.agent.Run(ctx) }()
	var once sync.Once
	a.stop = func() {
		once.Do(func() {
			cancel()
			require.NoError(p.t, <-ended)
		})
	}
	p.t.Cleanup(a.stop)
	p.agents[node] = a
	return a, nil
}

func (a *clusterAgent) ready() error {
	code, body, err := get(&http.Client{Timeout: patience}, a.url+"/readyz")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d %s", code, body)
	}
	return err
}

// backends are what an agent translates an address to; empty when it does not.
func (a *clusterAgent) backends(ctx context.Context, addr netip.Addr) ([]netip.Addr, error) {
	plan, err := a.agent.Plan(ctx)
	if err != nil {
		return nil, err
	}
	var list []netip.Addr
	for _, t := range plan.Translations {
		if t.Public == addr && t.Backend.IsValid() { // a shard's has none
			list = append(list, t.Backend)
		}
	}
	return list, nil
}

// translates waits until a node translates a public address to a machine, in both families, and has audited the flows; nil: until it
// translates it to nothing.
func (p *clusterPlane) translates(node string, last int, to *testenv.Host) {
	p.t.Helper()
	a := p.agents[node]
	testenv.Eventually(p.t, controllersTake, fmt.Sprintf("%s and the address .%d", node, last), func() error {
		for _, f := range testenv.Families() {
			have, err := a.backends(p.t.Context(), public(f, last))
			if err != nil {
				return err
			}
			var want []netip.Addr
			if to != nil {
				want = []netip.Addr{to.Addr(f)}
			}
			if !slices.Equal(have, want) {
				return fmt.Errorf("%s goes to %v instead of %v", public(f, last), have, want)
			}
		}
		if h := a.agent.Health(); !h.Ready {
			return fmt.Errorf("not ready: %+v", h)
		}
		if s := a.agent.AuditStats(); s.Pending > 0 {
			return fmt.Errorf("audit pending: %+v", s)
		}
		return nil
	})
}

func (p *clusterPlane) announce(last int, node *testenv.Node) {
	p.t.Helper()
	for _, f := range testenv.Families() {
		require.NoError(p.t, p.topo.Announce(public(f, last), node))
	}
}

// pod makes a Pod as KubeVirt's launcher of a machine is one.
func (p *clusterPlane) pod(name, service, node string, addrs ...netip.Addr) {
	p.t.Helper()
	p.kube.Pod(p.t, tenantA, name, node, map[string]string{"app": service}, texts(addrs)...)
}

func (p *clusterPlane) podStatus(name string, phase corev1.PodPhase, ready bool, addrs ...netip.Addr) {
	p.t.Helper()
	p.kube.PodStatus(p.t, tenantA, name, phase, ready, texts(addrs)...)
}

func texts(addrs []netip.Addr) []string {
	var list []string
	for _, a := range addrs {
		list = append(list, a.String())
	}
	return list
}

// expose makes a WholeIP Service of both families with public addresses.
func (p *clusterPlane) expose(name string, last int, change ...func(*corev1.Service)) {
	p.t.Helper()
	p.kube.Service(p.t, tenantA, name, "cozy-proxy", append([]func(*corev1.Service){bothFamilies}, change...)...)
	p.kube.Assign(p.t, tenantA, name, dual(last)...)
}

func bothFamilies(s *corev1.Service) {
	policy := corev1.IPFamilyPolicyRequireDualStack
	s.Spec.IPFamilyPolicy = &policy
}

// slicesOf lists the EndpointSlices of a Service.
func (p *clusterPlane) slicesOf(service string) ([]discoveryv1.EndpointSlice, error) {
	list, err := p.kube.Discovery.EndpointSlices(tenantA).List(p.t.Context(), metav1.ListOptions{
		LabelSelector: discoveryv1.LabelServiceName + "=" + service,
	})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// condition returns one of our conditions of a Service, nil when there is none.
func (p *clusterPlane) condition(namespace, name, kind string) *metav1.Condition {
	p.t.Helper()
	s, err := p.kube.Core.Services(namespace).Get(p.t.Context(), name, metav1.GetOptions{})
	require.NoError(p.t, err)
	i := slices.IndexFunc(s.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &s.Status.Conditions[i]
}

// says waits until the condition Programmed of a Service has a reason and a message that contains the texts.
func (p *clusterPlane) says(namespace, name string, reason nat.Reason, texts ...string) {
	p.t.Helper()
	testenv.Eventually(p.t, controllersTake, fmt.Sprintf("Service %s/%s says %s", namespace, name, reason), func() error {
		c := p.condition(namespace, name, status.Programmed)
		if c == nil {
			return errors.New("no condition")
		}
		want := metav1.ConditionFalse
		if reason == nat.ReasonProgrammed {
			want = metav1.ConditionTrue
		}
		if c.Reason != string(reason) || c.Status != want {
			return fmt.Errorf("%+v", *c)
		}
		for _, text := range texts {
			if !strings.Contains(c.Message, text) {
				return fmt.Errorf("no %q in %q", text, c.Message)
			}
		}
		return nil
	})
}

// counted counts the status writes that pass through a connection to the API server.
func counted(config *rest.Config, writes *atomic.Int64) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return requests(func(req *http.Request) (*http.Response, error) {
			if req.Method == http.MethodPatch {
				writes.Add(1)
			}
			return next.RoundTrip(req)
		})
	})
	return config
}

type requests func(*http.Request) (*http.Response, error)

func (f requests) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// remains fails the test when f fails once within the time, which is what "does not happen" can mean for what no packet marks the end of.
func remains(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	end := time.NewTimer(d)
	defer end.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		require.NoError(t, f())
		select {
		case <-end.C:
			return
		case <-tick.C:
		}
	}
}
