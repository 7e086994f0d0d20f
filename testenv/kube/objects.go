// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// ProxyLabel delegates a Service.
const ProxyLabel = "service.kubernetes.io/service-proxy-name"

// Namespace makes a namespace unless it is there.
func (c *Cluster) Namespace(tb testing.TB, name string) {
	tb.Helper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := c.Core.Namespaces().Create(context.Background(), namespace, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		require.NoError(tb, err)
	}
}

// Node makes a Node with addresses.
func (c *Cluster) Node(tb testing.TB, name string, addresses ...string) {
	tb.Helper()
	ctx := context.Background()
	node, err := c.Core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(tb, err)
	for _, a := range addresses {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	_, err = c.Core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{})
	require.NoError(tb, err)
}

// Service makes a WholeIP Service delegated to proxy (to nobody when empty), which selects Pods by the label app=<name>.
func (c *Cluster) Service(tb testing.TB, namespace, name, proxy string, change ...func(*corev1.Service)) *corev1.Service {
	tb.Helper()
	c.Namespace(tb, namespace)
	no := false
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: namespace, Labels: map[string]string{},
			Annotations: map[string]string{"networking.cozystack.io/wholeIP": "true"},
		},
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy:         corev1.ServiceExternalTrafficPolicyLocal,
			AllocateLoadBalancerNodePorts: &no,
			Selector:                      map[string]string{"app": name},
			Ports:                         []corev1.ServicePort{{Port: 65535}},
		},
	}
	if proxy != "" {
		s.Labels[ProxyLabel] = proxy
	}
	for _, f := range change {
		f(s)
	}
	s, err := c.Core.Services(namespace).Create(context.Background(), s, metav1.CreateOptions{})
	require.NoError(tb, err)
	return s
}

// ChangeService changes a Service, against whatever else changes it.
func (c *Cluster) ChangeService(tb testing.TB, namespace, name string, change func(*corev1.Service)) {
	tb.Helper()
	ctx := context.Background()
	require.NoError(tb, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, err := c.Core.Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.Labels == nil {
			s.Labels = map[string]string{}
		}
		change(s)
		_, err = c.Core.Services(namespace).Update(ctx, s, metav1.UpdateOptions{})
		return err
	}))
}

// Assign writes public addresses to a Service, as a load-balancer controller does.
func (c *Cluster) Assign(tb testing.TB, namespace, name string, addresses ...string) {
	tb.Helper()
	ctx := context.Background()
	require.NoError(tb, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		s, err := c.Core.Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Status.LoadBalancer.Ingress = nil
		for _, a := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a})
		}
		_, err = c.Core.Services(namespace).UpdateStatus(ctx, s, metav1.UpdateOptions{})
		return err
	}))
}

// Pod makes a running, ready Pod on a node, as a kubelet leaves it.
func (c *Cluster) Pod(tb testing.TB, namespace, name, node string, labels map[string]string, addresses ...string) {
	tb.Helper()
	c.Namespace(tb, namespace)
	ctx := context.Background()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "compute", Image: "virt-launcher"}}},
	}
	_, err := c.Core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	require.NoError(tb, err)
	c.PodStatus(tb, namespace, name, corev1.PodRunning, true, addresses...)
}

// PodStatus writes what a kubelet reports of a Pod.
func (c *Cluster) PodStatus(tb testing.TB, namespace, name string, phase corev1.PodPhase, ready bool, addresses ...string) {
	tb.Helper()
	ctx := context.Background()
	require.NoError(tb, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		pod, err := c.Core.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pod.Status.Phase = phase
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: condition(ready)}}
		pod.Status.PodIPs = nil
		for _, a := range addresses {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a})
		}
		if len(addresses) > 0 {
			pod.Status.PodIP = addresses[0]
		}
		_, err = c.Core.Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	}))
}

// DeletePod removes a Pod at once, as a kubelet does at the end of its grace period.
func (c *Cluster) DeletePod(tb testing.TB, namespace, name string) {
	tb.Helper()
	now := int64(0)
	require.NoError(tb, c.Core.Pods(namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}))
}

func condition(holds bool) corev1.ConditionStatus {
	if holds {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
