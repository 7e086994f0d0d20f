// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/agent/cluster"
	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

const (
	statusRight = "patch /services/status"
	eventRight  = "create /events"
)

// agent is source, policy and reporter of one node, without a kernel.
type agent struct {
	tap    *tap
	source *cluster.Source
	// passes counts the batches that were judged and reported.
	passes atomic.Int64
	stop   func()
}

func startAgent(t *testing.T, config *rest.Config, node string) *agent {
	t.Helper()
	a := &agent{tap: &tap{}}
	var err error
	a.source, err = cluster.Open(cluster.Options{Config: a.tap.tapped(config), Node: node, ProxyNames: nat.DefaultProxyNames()})
	require.NoError(t, err)
	services := status.Options{Client: a.source.Client(), Services: a.source, Node: node}
	reporter := status.Together{
		Services: status.New(services),
		Vouches:  status.NewVoucher(services),
		Shards:   status.NewShardReporter(status.ShardOptions{Client: a.source.ShardClient(), Events: a.source.Client(), Shards: a.source, Node: node}),
	}
	a.source.OnObserved(reporter.Observe)
	a.source.OnShardObserved(reporter.Shards.Observe)
	stops := []func(){
		background(t, a.source.Run), background(t, reporter.Run), background(t, func(ctx context.Context) { a.judge(ctx, node, reporter) }),
	}
	a.stop = func() {
		for _, stop := range stops {
			stop()
		}
	}
	return a
}

func (a *agent) judge(ctx context.Context, node string, reporter status.Together) {
	engine := nat.NewEngine(nat.Config{Node: node, ProxyNames: nat.DefaultProxyNames(), ShardCIDRs: nat.DefaultShardCIDRs()}, nil)
	held := nat.NewObjects()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.source.Changed():
		}
		batch, complete := a.source.Take()
		held.Merge(batch)
		if !complete {
			continue
		}
		outcome := engine.Apply(held, nat.Facts{})
		held = nat.NewObjects()
		reporter.Report(outcome.Verdicts, outcome.Gone)
		a.passes.Add(1)
	}
}

// condition waits until a Service has a condition with a reason and returns the Service.
func condition(t *testing.T, c *kube.Cluster, name, kind string, reason nat.Reason) *corev1.Service {
	t.Helper()
	var found *corev1.Service
	testenv.Eventually(t, soon, fmt.Sprintf("%s of %s with reason %s", kind, name, reason), func() error {
		s := service(t, c, name)
		for _, have := range s.Status.Conditions {
			if have.Type == kind && have.Reason == string(reason) {
				found = s
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", s.Status.Conditions)
	})
	return found
}

func service(t *testing.T, c *kube.Cluster, name string) *corev1.Service {
	t.Helper()
	s, err := c.Core.Services(tenant).Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(t, err)
	return s
}

func find(s *corev1.Service, kind string) *metav1.Condition {
	i := slices.IndexFunc(s.Status.Conditions, func(c metav1.Condition) bool { return c.Type == kind })
	if i < 0 {
		return nil
	}
	return &s.Status.Conditions[i]
}

// events returns the reasons that `kubectl describe service` shows, in the order of their names, which is that of time.
func events(t *testing.T, c *kube.Cluster, s *corev1.Service) []string {
	t.Helper()
	list, err := c.Core.Events(tenant).List(context.Background(), metav1.ListOptions{FieldSelector: fields.Set{
		"involvedObject.kind": "Service", "involvedObject.name": s.Name, "involvedObject.namespace": s.Namespace, "involvedObject.uid": string(s.UID),
	}.String()})
	require.NoError(t, err)
	sort.Slice(list.Items, func(i, j int) bool { return list.Items[i].Name < list.Items[j].Name })
	reasons := []string{}
	for _, e := range list.Items {
		require.Equal(t, "natplane", e.Source.Component)
		require.NotEmpty(t, e.Message)
		reasons = append(reasons, e.Type+" "+e.Reason)
	}
	return reasons
}

// foreignCondition must outlive ours.
const foreignCondition = "example.org/Announced"

func TestStatusIsWrittenOnceAndFollowsTheVerdict(t *testing.T) {
	c := twoNodes(t)
	addForeignCondition(t, c, "vm-1")
	config := agentConfig(t, c)
	a := startAgent(t, config, nodeA)
	b := startAgent(t, config, nodeB)

	first := condition(t, c, "vm-1", status.Programmed, nat.ReasonProgrammed)
	require.Equal(t, metav1.ConditionTrue, find(first, status.PrimaryEgress).Status)
	require.Contains(t, find(first, status.PrimaryEgress).Message, "203.0.113.10")
	require.Equal(t, "203.0.113.10", first.Status.LoadBalancer.Ingress[0].IP, "the address stays")
	require.NotNil(t, find(first, foreignCondition))
	testenv.Eventually(t, soon, "events", func() error {
		return same([]string{"Normal PrimaryEgressSelected", "Normal Programmed"}, sorted(events(t, c, first)))
	})
	require.Equal(t, 1, a.tap.count(statusRight))

	t.Run("nothing is written without a change", func(t *testing.T) {
		// The second Service is judged after the touched first one, so its condition shows that the queue is past both.
		c.ChangeService(t, tenant, "vm-1", func(s *corev1.Service) { s.Annotations["example.org/touched"] = "yes" })
		touched := service(t, c, "vm-1")
		c.Service(t, tenant, "vm-1x", "cozy-proxy", func(s *corev1.Service) { s.Spec.Selector = app("vm-1") })
		c.Assign(t, tenant, "vm-1x", "203.0.113.11")
		second := condition(t, c, "vm-1x", status.Programmed, nat.ReasonProgrammed)
		require.Equal(t, metav1.ConditionFalse, find(second, status.PrimaryEgress).Status)
		require.Equal(t, touched.ResourceVersion, service(t, c, "vm-1").ResourceVersion)
	})
	require.Zero(t, b.tap.count(statusRight), "one node writes")

	a.stop()
	before := service(t, c, "vm-1").ResourceVersion
	a = startAgent(t, config, nodeA)
	t.Run("a restart writes nothing", func(t *testing.T) {
		testenv.Eventually(t, soon, "first pass", func() error { return atLeast(1, a.passes.Load()) })
		holds(t, 2*time.Second, func() error { return same(0, a.tap.count(statusRight)+a.tap.count(eventRight)) })
		require.Equal(t, before, service(t, c, "vm-1").ResourceVersion)
	})

	t.Run("a new reason", func(t *testing.T) {
		began := find(service(t, c, "vm-1"), status.Programmed).LastTransitionTime
		c.Assign(t, tenant, "vm-1")
		s := condition(t, c, "vm-1", status.Programmed, nat.ReasonNoAddress)
		require.Equal(t, metav1.ConditionFalse, find(s, status.Programmed).Status)
		require.False(t, find(s, status.Programmed).LastTransitionTime.Before(&began))
		testenv.Eventually(t, soon, "event", func() error {
			if !slices.Contains(events(t, c, s), "Warning NoAddress") {
				return errors.New(strings.Join(events(t, c, s), ", "))
			}
			return nil
		})
		c.Assign(t, tenant, "vm-1", "203.0.113.10")
		condition(t, c, "vm-1", status.Programmed, nat.ReasonProgrammed)
	})

	t.Run("a condition that someone else wrote", func(t *testing.T) {
		s := service(t, c, "vm-1")
		find(s, status.Programmed).Reason = "Elsewise"
		_, err := c.Core.Services(tenant).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
		require.NoError(t, err)
		condition(t, c, "vm-1", status.Programmed, nat.ReasonProgrammed)
	})

	t.Run("the label goes", func(t *testing.T) {
		c.ChangeService(t, tenant, "vm-1", func(s *corev1.Service) { delete(s.Labels, kube.ProxyLabel) })
		testenv.Eventually(t, soon, "our conditions are gone", func() error {
			s := service(t, c, "vm-1")
			if find(s, status.Programmed) != nil || find(s, status.PrimaryEgress) != nil {
				return fmt.Errorf("conditions: %+v", s.Status.Conditions)
			}
			return nil
		})
		s := service(t, c, "vm-1")
		require.NotNil(t, find(s, foreignCondition), "conditions of others stay")
		require.Len(t, s.Status.LoadBalancer.Ingress, 1)
	})
	require.Zero(t, b.tap.count(statusRight))
}

// TestStatusMovesWithTheMachine migrates the backend with its address: the other node takes over the conditions (R20).
func TestStatusMovesWithTheMachine(t *testing.T) {
	c := twoNodes(t)
	config := agentConfig(t, c)
	a, b := startAgent(t, config, nodeA), startAgent(t, config, nodeB)
	condition(t, c, "vm-1", status.Programmed, nat.ReasonProgrammed)
	require.Equal(t, 1, a.tap.count(statusRight))

	c.Pod(t, tenant, "vm-1-target", nodeB, app("vm-1"), "10.244.1.10")
	c.PodStatus(t, tenant, "vm-1", corev1.PodSucceeded, false, "10.244.1.10")
	c.Assign(t, tenant, "vm-1", "203.0.113.77")
	testenv.Eventually(t, soon, "the new node reports the new address", func() error {
		s := service(t, c, "vm-1")
		if c := find(s, status.PrimaryEgress); !strings.Contains(c.Message, "203.0.113.77") {
			return errors.New(c.Message)
		}
		return atLeast(1, int64(b.tap.count(statusRight)))
	})

	settled := service(t, c, "vm-1").ResourceVersion
	holds(t, 2*time.Second, func() error { return same(settled, service(t, c, "vm-1").ResourceVersion) })
	c.ChangeService(t, tenant, "vm-1", func(s *corev1.Service) { delete(s.Labels, kube.ProxyLabel) })
	testenv.Eventually(t, soon, "the new node removes what the old one wrote", func() error {
		return same(0, len(service(t, c, "vm-1").Status.Conditions))
	})
}

// TestRightsAreThoseUsed compares the deployed ClusterRole with what is asked for, over a life with everything in it. A server that
// does not stream lists gives the verb list its reason.
func TestRightsAreThoseUsed(t *testing.T) {
	c := twoNodes(t)
	c.Definition(t, shardsFile)
	config := agentConfig(t, c)
	a := startAgent(t, config, nodeA)
	newShardClient(t, c).create(t, "one", nodeA, "2001:db8:203::200")
	testenv.Eventually(t, soon, "the status of the shard", func() error { return atLeast(1, int64(a.tap.count(shardRight))) })
	condition(t, c, "vm-1", status.Programmed, nat.ReasonProgrammed)
	testenv.Eventually(t, soon, "an event", func() error { return atLeast(1, int64(a.tap.count(eventRight))) })
	testenv.Eventually(t, soon, "shards are read", func() error { return same(0, len(a.source.Problems())) })

	old := &tap{fate: withoutStreamedLists}
	v := follow(t, old.tapped(config), nodeA, nil)
	v.eventually(t, soon, "complete from an older server", func(o nat.Objects, complete bool) bool {
		return complete && len(o.Services) == 1 && len(endpoints(o, "vm-1")) == 1
	})
	testenv.Eventually(t, soon, "watches after lists", func() error {
		return atLeast(10, int64(old.count("watch /services")+old.count("watch /pods")+
			old.count("watch /nodes")+old.count("watch discovery.k8s.io/endpointslices")+old.count("watch network.datumapis.com/egressshards")))
	})

	used := map[string]bool{}
	for _, tap := range []*tap{a.tap, old} {
		tap.mu.Lock()
		for _, r := range tap.requests {
			used[r] = true
		}
		tap.mu.Unlock()
	}
	delete(used, "get /apis/network.datumapis.com/v1alpha1") // what system:discovery grants to everybody
	require.Empty(t, cmp.Diff(granted(t), used))
}

func addForeignCondition(t *testing.T, c *kube.Cluster, name string) {
	t.Helper()
	s := service(t, c, name)
	s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{
		Type: foreignCondition, Status: metav1.ConditionTrue, Reason: "Announced", Message: "from node-a", LastTransitionTime: metav1.Now(),
	})
	_, err := c.Core.Services(tenant).UpdateStatus(context.Background(), s, metav1.UpdateOptions{})
	require.NoError(t, err)
}

func same[T any](want, have T) error {
	if diff := cmp.Diff(want, have); diff != "" {
		return errors.New(diff)
	}
	return nil
}

func atLeast(want, have int64) error {
	if have < want {
		return fmt.Errorf("%d, want %d", have, want)
	}
	return nil
}

func sorted(s []string) []string {
	slices.Sort(s)
	return s
}
