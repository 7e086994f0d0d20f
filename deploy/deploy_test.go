// SPDX-License-Identifier: Apache-2.0

// Package deploy checks the manifests of this directory without a cluster: that they decode strictly, that they ask for no more than the agent
// needs, and that they agree with each other.
package deploy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/natplane/natplane/nat"
)

func read[T any](t *testing.T, path ...string) T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	var object T
	require.NoError(t, yaml.UnmarshalStrict(text, &object), path)
	return object
}

// kustomization is the part of kustomize's format that is used here.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Namespace  string   `json:"namespace,omitempty"`
	Resources  []string `json:"resources"`
	Labels     []struct {
		Pairs map[string]string `json:"pairs"`
	} `json:"labels,omitempty"`
	Patches []struct {
		Target struct{ Kind, Name string } `json:"target"`
		Patch  string                      `json:"patch"`
	} `json:"patches,omitempty"`
}

// TestRole names every right once more, with the code that uses it; that these are all that is used is shown against a real API server by
// TestRightsAreThoseUsed of package cluster.
func TestRole(t *testing.T) {
	role := read[rbacv1.ClusterRole](t, "base", "clusterrole.yaml")
	have := map[string][]string{}
	for _, rule := range role.Rules {
		require.Empty(t, rule.NonResourceURLs)
		require.Empty(t, rule.ResourceNames)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				have[group+"/"+resource] = append(have[group+"/"+resource], rule.Verbs...)
			}
		}
	}
	follow := []string{"list", "watch"}
	want := map[string][]string{
		"/services":                          follow, // agent/cluster
		"/pods":                              follow,
		"/nodes":                             follow,
		"discovery.k8s.io/endpointslices":    follow,
		"network.datumapis.com/egressshards": follow,
		"/services/status":                   {"patch"}, // agent/status
		"network.datumapis.com/egressshards/status": {"patch"}, // agent/status
		"/events": {"create"}, // agent/status
	}
	require.Empty(t, cmp.Diff(want, have))
}

func TestAccountAndBindingFit(t *testing.T) {
	account := read[corev1.ServiceAccount](t, "base", "serviceaccount.yaml")
	binding := read[rbacv1.ClusterRoleBinding](t, "base", "clusterrolebinding.yaml")
	role := read[rbacv1.ClusterRole](t, "base", "clusterrole.yaml")
	namespace := read[corev1.Namespace](t, "base", "namespace.yaml")
	require.Equal(t, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}, binding.RoleRef)
	require.Equal(t, []rbacv1.Subject{{Kind: "ServiceAccount", Name: account.Name, Namespace: account.Namespace}}, binding.Subjects)
	require.Equal(t, namespace.Name, account.Namespace)
	daemons := read[appsv1.DaemonSet](t, "base", "daemonset.yaml")
	require.Equal(t, account.Name, daemons.Spec.Template.Spec.ServiceAccountName)
	require.Equal(t, namespace.Name, daemons.Namespace)
}

func TestDaemonSet(t *testing.T) {
	d := read[appsv1.DaemonSet](t, "base", "daemonset.yaml")
	require.Equal(t, d.Spec.Selector.MatchLabels, d.Spec.Template.Labels)
	update := d.Spec.UpdateStrategy.RollingUpdate
	require.Equal(t, intstr.FromInt32(1), *update.MaxUnavailable)
	require.Equal(t, intstr.FromInt32(0), *update.MaxSurge, "two agents cannot own one table, nor listen on one port")

	pod := d.Spec.Template.Spec
	require.True(t, pod.HostNetwork)
	require.Equal(t, "system-node-critical", pod.PriorityClassName)
	require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations)
	require.Equal(t, map[string]string{"kubernetes.io/os": "linux"}, pod.NodeSelector)
	require.Empty(t, pod.Volumes, "nothing of the node's files")
	require.Nil(t, pod.AutomountServiceAccountToken, "the default is a token")
	require.Nil(t, read[corev1.ServiceAccount](t, "base", "serviceaccount.yaml").AutomountServiceAccountToken)
	require.Len(t, pod.Containers, 1)

	c := pod.Containers[0]
	require.Empty(t, c.VolumeMounts)
	require.True(t, *c.SecurityContext.ReadOnlyRootFilesystem)
	require.False(t, *c.SecurityContext.AllowPrivilegeEscalation)
	require.Nil(t, c.SecurityContext.Privileged)
	require.Equal(t, &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}}, c.SecurityContext.Capabilities)
	require.Equal(t, "agent", c.Args[0])
	require.Contains(t, c.Args, "--node-name=$(NODE_NAME)")
	node := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "NODE_NAME" })
	require.Equal(t, "spec.nodeName", c.Env[node].ValueFrom.FieldRef.FieldPath)
	for path, probe := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		require.Equal(t, path, probe.HTTPGet.Path)
		require.Equal(t, "127.0.0.1", probe.HTTPGet.Host)
		require.Equal(t, 9410, probe.HTTPGet.Port.IntValue())
	}
	require.Equal(t, "/healthz", c.StartupProbe.HTTPGet.Path, "an agent without an API server must not be restarted")
}

// TestMemory: a soft limit that the runtime knows, below the hard one, which also pays for what the kernel holds for the agent.
func TestMemory(t *testing.T) {
	c := read[appsv1.DaemonSet](t, "base", "daemonset.yaml").Spec.Template.Spec.Containers[0]
	i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "GOMEMLIMIT" })
	mebibytes, isMiB := strings.CutSuffix(c.Env[i].Value, "MiB")
	require.True(t, isMiB)
	soft, hard := resource.MustParse(mebibytes+"Mi"), c.Resources.Limits.Memory()
	require.InDelta(t, 0.78, soft.AsApproximateFloat64()/hard.AsApproximateFloat64(), 0.02)
	require.NotContains(t, c.Resources.Limits, corev1.ResourceCPU, "a change must not wait for the next period")
}

func TestKustomizations(t *testing.T) {
	for _, dir := range []string{"base", "overlays/all-nodes", "overlays/edge-nodes"} {
		k := read[kustomization](t, dir, "kustomization.yaml")
		require.Equal(t, "Kustomization", k.Kind)
		for _, resource := range k.Resources {
			_, err := os.Stat(filepath.Join(dir, resource))
			require.NoError(t, err)
		}
		for _, p := range k.Patches {
			require.Equal(t, "DaemonSet", p.Target.Kind)
			require.Equal(t, "natplane", p.Target.Name)
			var operations []struct {
				Op, Path, Value string
			}
			require.NoError(t, yaml.UnmarshalStrict([]byte(p.Patch), &operations))
			require.Equal(t, "/spec/template/spec/nodeSelector/natplane.io~1edge", operations[0].Path, "beside what the base selects by")
			for _, arg := range operations[1:] {
				require.Equal(t, "/spec/template/spec/containers/0/args/-", arg.Path)
				require.Equal(t, "--agent-nodes=natplane.io/edge="+operations[0].Value, arg.Value, "the agents know where agents are")
			}
		}
	}
	files, err := os.ReadDir("base")
	require.NoError(t, err)
	k := read[kustomization](t, "base", "kustomization.yaml")
	require.Len(t, k.Resources, len(files)-1, "every manifest of the base is listed")
}

// TestShardFieldsOfTheCRD holds the CRD for tests against the fields that policy reads.
func TestShardFieldsOfTheCRD(t *testing.T) {
	crd := read[map[string]any](t, "crd", "egressshard.yaml")
	version := crd["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
	schema := version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any)["properties"].(map[string]any)
	full := nat.EgressShard{
		Spec: nat.EgressShardSpec{
			TargetRef: nat.EgressShardTarget{Kind: "Node", Name: "n"}, ShardAddressIPv6: "x", ShardAddressIPv4: "x", NAT64Prefix: "x", Drain: true,
		},
		Status: nat.EgressShardStatus{ShardAddressIPv6: "x", ShardAddressIPv4: "x", NAT64Prefix: "x", ObservedGeneration: 1},
	}
	text, err := yaml.Marshal(full)
	require.NoError(t, err)
	var object map[string]any
	require.NoError(t, yaml.Unmarshal(text, &object))
	for _, part := range []string{"spec", "status"} {
		known := schema[part].(map[string]any)["properties"].(map[string]any)
		for name := range object[part].(map[string]any) {
			require.Contains(t, known, name, part)
		}
	}
}
