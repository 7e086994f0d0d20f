// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

func shard(name string) nat.Key      { return nat.Key{Namespace: "default", Name: name} }
func inTenant(name string) nat.Key   { return nat.Key{Namespace: tenant, Name: name} }
func app(n string) map[string]string { return map[string]string{"app": n} }

// twoNodes is a cluster with two nodes, a machine on each, and a delegated Service for the first.
func twoNodes(t *testing.T) *kube.Cluster {
	t.Helper()
	c := kube.Start(t)
	c.Node(t, nodeA, "198.51.100.1")
	c.Node(t, nodeB, "198.51.100.2")
	c.Pod(t, tenant, "vm-1", nodeA, app("vm-1"), "10.244.1.10")
	c.Pod(t, tenant, "vm-2", nodeB, app("vm-2"), "10.244.2.10")
	c.Service(t, tenant, "vm-1", "cozy-proxy")
	c.Assign(t, tenant, "vm-1", "203.0.113.10")
	return c
}

func TestFollowsWhatIsSelectedAndNothingElse(t *testing.T) {
	c := twoNodes(t)
	c.Service(t, tenant, "vm-2", "natplane")
	c.Service(t, tenant, "plain", "", func(s *corev1.Service) { s.Spec.Selector = app("vm-1") })
	c.Service(t, tenant, "other", "other-proxy", func(s *corev1.Service) { s.Spec.Selector = app("vm-1") })
	tap := &tap{}
	v := follow(t, tap.tapped(agentConfig(t, c)), nodeA, nil)

	v.eventually(t, soon, "everything selected", func(o nat.Objects, complete bool) bool {
		return complete && len(o.Services) == 2 && endpoints(o, "vm-1")["10.244.1.10"] && endpoints(o, "vm-2")["10.244.2.10"]
	})
	v.see(func(o nat.Objects, _ bool) {
		require.Contains(t, o.Services, inTenant("vm-1"))
		require.Equal(t, "203.0.113.10", o.Services[inTenant("vm-1")].Status.LoadBalancer.Ingress[0].IP)
		require.Len(t, o.Pods, 1, "Pods of this node only")
		require.Contains(t, o.Pods, inTenant("vm-1"))
		require.Len(t, o.Nodes, 2)
		require.Empty(t, endpoints(o, "plain"))
		require.Empty(t, endpoints(o, "other"))
	})

	t.Run("a label that goes and comes", func(t *testing.T) {
		c.ChangeService(t, tenant, "vm-2", func(s *corev1.Service) { delete(s.Labels, kube.ProxyLabel) })
		v.eventually(t, soon, "service and slices gone", func(o nat.Objects, _ bool) bool {
			return o.Services[inTenant("vm-2")] == nil && len(endpoints(o, "vm-2")) == 0
		})
		c.ChangeService(t, tenant, "vm-2", func(s *corev1.Service) { s.Labels[kube.ProxyLabel] = "cozy-proxy" })
		v.eventually(t, soon, "service and slices back", func(o nat.Objects, _ bool) bool {
			return o.Services[inTenant("vm-2")] != nil && len(endpoints(o, "vm-2")) == 1
		})
	})
	t.Run("a pod that goes", func(t *testing.T) {
		c.DeletePod(t, tenant, "vm-1")
		v.eventually(t, soon, "pod and endpoint gone", func(o nat.Objects, _ bool) bool {
			return len(o.Pods) == 0 && len(endpoints(o, "vm-1")) == 0
		})
	})

	selectors := map[string]string{
		"/api/v1/services":                                  "labelSelector=" + nat.LabelProxyName + " in (cozy-proxy,natplane)",
		"/apis/discovery.k8s.io/v1/endpointslices":          "labelSelector=" + nat.LabelProxyName + " in (cozy-proxy,natplane)",
		"/api/v1/pods":                                      "fieldSelector=spec.nodeName=" + nodeA,
		"/api/v1/nodes":                                     "",
		"/apis/network.datumapis.com/v1alpha1":              "",
		"/apis/network.datumapis.com/v1alpha1/egressshards": "",
	}
	tap.mu.Lock()
	defer tap.mu.Unlock()
	for _, query := range tap.queries {
		path, raw, _ := strings.Cut(query, "?")
		require.Contains(t, selectors, path, "nothing else is asked for")
		decoded, err := url.QueryUnescape(raw)
		require.NoError(t, err)
		require.Contains(t, decoded, selectors[path])
	}
}

// TestDeletedWhileTheWatchWasBroken deletes one Service and replaces another by a namesake while nobody looks (B12).
func TestDeletedWhileTheWatchWasBroken(t *testing.T) {
	c := twoNodes(t)
	c.Service(t, tenant, "vm-2", "cozy-proxy")
	line := newLine()
	v := follow(t, line.cuttable(agentConfig(t, c)), nodeA, nil)
	v.eventually(t, soon, "first lists", func(o nat.Objects, complete bool) bool {
		return complete && len(o.Services) == 2 && len(endpoints(o, "vm-1")) == 1 && len(o.Pods) == 1
	})

	line.cut()
	testenv.Eventually(t, soon, "outage noticed", func() error { return connected(v, false) })
	ctx := context.Background()
	require.NoError(t, c.Core.Services(tenant).Delete(ctx, "vm-1", metav1.DeleteOptions{}))
	require.NoError(t, c.Core.Services(tenant).Delete(ctx, "vm-2", metav1.DeleteOptions{}))
	c.DeletePod(t, tenant, "vm-1")
	again := c.Service(t, tenant, "vm-2", "cozy-proxy")
	v.see(func(o nat.Objects, complete bool) {
		require.True(t, complete)
		require.Len(t, o.Services, 2, "an outage takes nothing away")
		require.Len(t, o.Pods, 1)
	})
	require.Len(t, v.source.Problems(), 2, "outage and absent CRD: %q", v.source.Problems())

	line.mend()
	v.eventually(t, soon, "what was missed", func(o nat.Objects, _ bool) bool {
		return len(o.Services) == 1 && o.Services[inTenant("vm-2")].UID == again.UID && len(o.Pods) == 0 && len(endpoints(o, "vm-1")) == 0
	})
	require.NoError(t, connected(v, true))
}

// TestNothingIsCompleteBeforeEveryKindIs holds back one kind (B86).
func TestNothingIsCompleteBeforeEveryKindIs(t *testing.T) {
	c := twoNodes(t)
	release := make(chan struct{})
	tap := &tap{fate: func(req *http.Request) (*http.Response, error) {
		if strings.HasSuffix(req.URL.Path, "/endpointslices") {
			select {
			case <-release:
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
		}
		return nil, nil
	}}
	v := follow(t, tap.tapped(agentConfig(t, c)), nodeA, nil)
	v.eventually(t, soon, "the other kinds", func(o nat.Objects, _ bool) bool {
		return len(o.Services) == 1 && len(o.Pods) == 1 && len(o.Nodes) == 2 && len(v.source.Problems()) == 1
	})
	v.see(func(o nat.Objects, complete bool) {
		require.False(t, complete)
		require.Empty(t, o.Slices)
	})
	close(release)
	v.eventually(t, soon, "complete with the slices", func(o nat.Objects, complete bool) bool {
		require.False(t, complete && len(o.Slices) == 0, "completeness must not overtake the objects")
		return complete
	})
}

func TestShardKindThatComesAndGoes(t *testing.T) {
	c := twoNodes(t)
	v := follow(t, agentConfig(t, c), nodeA, nil)
	v.eventually(t, soon, "complete without the CRD", func(_ nat.Objects, complete bool) bool { return complete })
	require.Len(t, v.source.Problems(), 1)
	require.Contains(t, v.source.Problems()[0], "EgressShards are not served")
	connectedNow, _ := v.source.Connected()
	require.True(t, connectedNow)

	c.Definition(t, shardsFile)
	v.eventually(t, soon, "the kind is read", func(nat.Objects, bool) bool { return len(v.source.Problems()) == 0 })
	api := c.Dynamic.Resource(schema.GroupVersionResource{Group: "network.datumapis.com", Version: "v1alpha1", Resource: "egressshards"}).Namespace("default")
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "network.datumapis.com/v1alpha1", "kind": "EgressShard", "metadata": map[string]any{"name": "one"},
		"spec": map[string]any{
			"targetRef": map[string]any{"kind": "Node", "name": nodeA}, "shardAddressIPv6": "2001:db8:203::200",
			"shardSID": "2001:db8:ff01::",
		},
	}}
	_, err := api.Create(context.Background(), object, metav1.CreateOptions{})
	require.NoError(t, err)
	v.eventually(t, soon, "the shard", func(o nat.Objects, _ bool) bool {
		s := o.Shards[shard("one")]
		return s != nil && s.Spec.TargetRef.Name == nodeA && s.Spec.ShardAddressIPv6 == "2001:db8:203::200" && s.UID != ""
	})

	t.Run("addresses are write-once", func(t *testing.T) {
		for _, patch := range []string{
			`{"spec":{"shardAddressIPv6":"2001:db8:203::201"}}`, `{"spec":{"shardAddressIPv6":null}}`,
			`{"spec":{"shardAddressIPv4":"203.0.113.7"}}`, `{"spec":{"targetRef":{"name":"node-b"}}}`,
		} {
			_, err := api.Patch(context.Background(), "one", "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
			require.Error(t, err, patch)
		}
		both := `{"spec":{"shardAddressIPv4":"203.0.113.7","nat64Prefix":"64:ff9b:1::/96","drain":true}}`
		_, err := api.Patch(context.Background(), "one", "application/merge-patch+json", []byte(both), metav1.PatchOptions{})
		require.NoError(t, err)
		v.eventually(t, soon, "the change", func(o nat.Objects, _ bool) bool { return o.Shards[shard("one")].Spec.Drain })
	})

	c.DeleteDefinition(t, "egressshards.network.datumapis.com")
	v.eventually(t, soon, "shards and kind gone", func(o nat.Objects, complete bool) bool {
		return complete && len(o.Shards) == 0 && len(v.source.Problems()) == 1
	})
	v.see(func(o nat.Objects, _ bool) { require.Len(t, o.Services, 1, "the other kinds go on") })
}
