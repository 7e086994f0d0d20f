// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
)

// examples reads the example manifests, which have every field that policy reads.
func examples(t *testing.T) nat.Objects {
	t.Helper()
	dir := filepath.Join("..", "..", "deploy", "examples")
	_, err := os.Stat(dir)
	require.NoError(t, err)
	source, err := manifests.Open(dir, nil)
	require.NoError(t, err)
	go source.Run(t.Context())
	all := nat.NewObjects()
	for {
		select {
		case <-source.Changed():
		case <-time.After(10 * time.Second):
			require.FailNow(t, "examples were not read")
		}
		batch, complete := source.Take()
		all.Merge(batch)
		if complete {
			return all
		}
	}
}

func TestStrippedObjectsDecideTheSame(t *testing.T) {
	whole := examples(t)
	require.NotEmpty(t, whole.Services)
	require.NotEmpty(t, whole.Slices)
	require.NotEmpty(t, whole.Pods)
	require.NotEmpty(t, whole.Nodes)
	for _, s := range whole.Services {
		s.Spec.LoadBalancerSourceRanges = []string{"198.51.100.0/24"}
	}
	stripped := nat.NewObjects()
	for key, o := range whole.Services {
		stripped.Services[key] = stripService(o)
	}
	for key, o := range whole.Slices {
		stripped.Slices[key] = stripSlice(o)
	}
	for key, o := range whole.Pods {
		stripped.Pods[key] = stripPod(o)
	}
	for name, o := range whole.Nodes {
		stripped.Nodes[name] = stripNode(o)
	}
	for key, o := range whole.Shards {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		require.NoError(t, err)
		shard, err := stripShard(&unstructured.Unstructured{Object: content})
		require.NoError(t, err)
		stripped.Shards[key] = shard.(*nat.EgressShard)
	}
	for name := range whole.Nodes {
		config := nat.Config{Node: name, ProxyNames: nat.DefaultProxyNames()}
		wantState, wantVerdicts := nat.Build(config, whole, nat.Facts{})
		haveState, haveVerdicts := nat.Build(config, stripped, nat.Facts{})
		require.Equal(t, fmt.Sprintf("%+v", wantState), fmt.Sprintf("%+v", haveState))
		require.Equal(t, wantVerdicts, haveVerdicts)
	}
}

// TestStrippedObjectsSayWhoVouches keeps what policy Cluster depends on.
func TestStrippedObjectsSayWhoVouches(t *testing.T) {
	whole := examples(t)
	edges, err := labels.Parse("edge in (yes,true),zone!=far")
	require.NoError(t, err)
	config := nat.Config{Node: "none-of-them", ProxyNames: nat.DefaultProxyNames(), VouchedOnly: true, AgentNodes: edges}
	var words []metav1.Condition
	for name, n := range whole.Nodes {
		n.Labels = map[string]string{"edge": "true", "zone": "near", "kubernetes.io/hostname": name}
		for _, s := range whole.Slices {
			for _, e := range s.Endpoints {
				words = append(words, metav1.Condition{Type: nat.VouchPrefix + name, Status: metav1.ConditionTrue, Message: e.Addresses[0]})
			}
		}
	}
	alone := nat.Key{Namespace: "tenant-a", Name: "without-a-backend"}
	for _, s := range whole.Services {
		whole.Services[alone] = s.DeepCopy()
		whole.Services[alone].Namespace, whole.Services[alone].Name = alone.Namespace, alone.Name
		break
	}
	stripped := nat.NewObjects()
	stripped.Slices, stripped.Pods, stripped.Shards = whole.Slices, whole.Pods, whole.Shards
	for key, s := range whole.Services {
		s.Spec.ExternalTrafficPolicy, s.Status.Conditions = corev1.ServiceExternalTrafficPolicyCluster, words
		stripped.Services[key] = stripService(s)
	}
	for name, n := range whole.Nodes {
		stripped.Nodes[name] = stripNode(n, labelKeys(edges)...)
		require.NotContains(t, stripped.Nodes[name].Labels, "kubernetes.io/hostname")
	}
	wantState, wantVerdicts := nat.Build(config, whole, nat.Facts{})
	haveState, haveVerdicts := nat.Build(config, stripped, nat.Facts{})
	require.True(t, slices.ContainsFunc(wantVerdicts, func(v nat.Verdict) bool { return v.Programmed }))
	require.Equal(t, fmt.Sprintf("%+v", wantState), fmt.Sprintf("%+v", haveState))
	require.Equal(t, wantVerdicts, haveVerdicts)
}

func TestStrippedPodIsSmall(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "vm-1", Namespace: "tenant-a", UID: "1", ResourceVersion: "7",
			Labels: map[string]string{"app": "vm-1"}, ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec:   corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "compute"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.10"}}},
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "vm-1", Namespace: "tenant-a", UID: "1", ResourceVersion: "7"},
		Spec:       corev1.PodSpec{NodeName: "node-a"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.244.1.10"}}},
	}
	require.Empty(t, cmp.Diff(want, stripPod(pod)))
}

func TestShardOfAnotherCRD(t *testing.T) {
	object := func(spec map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "network.datumapis.com/v1alpha1", "kind": "EgressShard",
			"metadata": map[string]any{"name": "one", "namespace": "default", "uid": "1", "resourceVersion": "7"}, "spec": spec,
		}}
	}
	newer, err := stripShard(object(map[string]any{"targetRef": map[string]any{"name": "node-a"}, "future": []any{"x"}}))
	require.NoError(t, err)
	require.Equal(t, "node-a", newer.(*nat.EgressShard).Spec.TargetRef.Name)

	foreign, err := stripShard(object(map[string]any{"targetRef": map[string]any{"name": "node-a"}, "shardAddressIPv6": int64(6)}))
	require.NoError(t, err, "one bad object must not stop a list")
	require.Equal(t, nat.EgressShardSpec{}, shardOf(foreign).Spec)
	require.Equal(t, "spec.shardAddressIPv6 is of type number instead of string", foreign.(*unreadableShard).why)
	require.Equal(t, "one", foreign.GetName())
}
