// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Account makes a service account that has a ClusterRole, read from a manifest, and nothing else; the result speaks with its token.
func (c *Cluster) Account(tb testing.TB, namespace, name, roleFile string) *rest.Config {
	tb.Helper()
	ctx := context.Background()
	c.Namespace(tb, namespace)
	var role rbacv1.ClusterRole
	read(tb, roleFile, &role)
	_, err := c.Rbac.ClusterRoles().Create(ctx, &role, metav1.CreateOptions{})
	require.NoError(tb, err)
	_, err = c.Rbac.ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}, metav1.CreateOptions{})
	require.NoError(tb, err)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err = c.Core.ServiceAccounts(namespace).Create(ctx, account, metav1.CreateOptions{})
	require.NoError(tb, err)
	token, err := c.Core.ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	require.NoError(tb, err)
	config := rest.AnonymousClientConfig(c.Config)
	config.BearerToken = token.Status.Token
	return config
}

// Definition makes a CRD from a manifest.
func (c *Cluster) Definition(tb testing.TB, file string) {
	tb.Helper()
	var object map[string]any
	read(tb, file, &object)
	_, err := c.Dynamic.Resource(definitions()).Create(context.Background(), &unstructured.Unstructured{Object: object}, metav1.CreateOptions{})
	require.NoError(tb, err)
}

// DeleteDefinition removes a CRD and with it its objects.
func (c *Cluster) DeleteDefinition(tb testing.TB, name string) {
	tb.Helper()
	require.NoError(tb, c.Dynamic.Resource(definitions()).Delete(context.Background(), name, metav1.DeleteOptions{}))
}

func definitions() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
}

func read(tb testing.TB, file string, into any) {
	tb.Helper()
	text, err := os.ReadFile(file)
	require.NoError(tb, err)
	require.NoError(tb, yaml.Unmarshal(text, into), file)
}
