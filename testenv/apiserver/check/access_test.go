// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// TestServiceAccountRights runs as a service account with a real token: RBAC
// decides, so a missing rule in a deployment shows up in a test.
func TestServiceAccountRights(t *testing.T) {
	s := start(t, t.TempDir())
	admin := connect(t, s.client)
	admin.createNamespace(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "agent"}}
	_, err := admin.CoreV1().ServiceAccounts(testNamespace).Create(t.Context(), account, metav1.CreateOptions{})
	require.NoError(t, err)
	token, err := admin.CoreV1().ServiceAccounts(testNamespace).CreateToken(t.Context(), "agent",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(t, err)

	cfg := rest.AnonymousClientConfig(s.client)
	cfg.BearerToken = token.Status.Token
	agent := connect(t, cfg)
	_, err = agent.CoreV1().Services(testNamespace).List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsForbidden(err), "%v", err)

	admin.grantServices(t, "agent")
	eventually(t, "right to list Services", func(ctx context.Context) (bool, error) {
		_, err := agent.CoreV1().Services(testNamespace).List(ctx, metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
}

// grantServices lets a service account read Services. The role is one of our
// own: "view" and its like are aggregated by a controller that is not here.
func (c cluster) grantServices(t *testing.T, account string) {
	t.Helper()
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}}},
	}
	_, err := c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	require.NoError(t, err)
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: account},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: testNamespace, Name: account}},
	}
	_, err = c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{})
	require.NoError(t, err)
}

// TestCustomResource writes the status of an object of a new kind.
func TestCustomResource(t *testing.T) {
	s := start(t, t.TempDir())
	client, err := dynamic.NewForConfig(s.client)
	require.NoError(t, err)
	definitions := client.Resource(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	})
	_, err = definitions.Create(t.Context(), shardDefinition(), metav1.CreateOptions{})
	require.NoError(t, err)

	shards := client.Resource(schema.GroupVersionResource{
		Group: "example.org", Version: "v1", Resource: "shards",
	}).Namespace(metav1.NamespaceDefault)
	shard := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.org/v1", "kind": "Shard", "metadata": map[string]any{"name": "one"},
	}}
	eventually(t, "object of the new kind", func(ctx context.Context) (bool, error) {
		created, err := shards.Create(ctx, shard, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil // the kind is not served yet
		}
		shard = created
		return err == nil, err
	})
	require.NoError(t, unstructured.SetNestedField(shard.Object, "203.0.113.7", "status", "address"))
	_, err = shards.UpdateStatus(t.Context(), shard, metav1.UpdateOptions{})
	require.NoError(t, err)

	shard, err = shards.Get(t.Context(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	address, _, err := unstructured.NestedString(shard.Object, "status", "address")
	require.NoError(t, err)
	require.Equal(t, "203.0.113.7", address)
}

func shardDefinition() *unstructured.Unstructured {
	open := map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata":   map[string]any{"name": "shards.example.org"},
		"spec": map[string]any{
			"group": "example.org",
			"scope": "Namespaced",
			"names": map[string]any{"plural": "shards", "singular": "shard", "kind": "Shard", "listKind": "ShardList"},
			"versions": []any{map[string]any{
				"name": "v1", "served": true, "storage": true,
				"schema":       map[string]any{"openAPIV3Schema": open},
				"subresources": map[string]any{"status": map[string]any{}},
			}},
		},
	}}
}
