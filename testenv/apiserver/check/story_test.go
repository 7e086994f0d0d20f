// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEndpointSliceStory goes through what a test of the agent does to a
// cluster: objects, slices, a crash of the server, and removal.
func TestEndpointSliceStory(t *testing.T) {
	dir := t.TempDir()
	first := start(t, dir)
	c := connect(t, first.client)
	c.createNamespace(t)
	c.createNode(t)
	service := c.createService(t)
	require.Len(t, service.Spec.ClusterIPs, 2, "both families")

	began := time.Now()
	pod := c.createPod(t, "launcher-1", netip.MustParseAddr("10.244.1.10"), netip.MustParseAddr("fd00:10:244:1::10"))
	both := map[string]int{"10.244.1.10": 1, "fd00:10:244:1::10": 1}
	slices := c.waitSlices(t, func(list []discoveryv1.EndpointSlice) bool {
		return maps.Equal(both, endpointAddresses(list))
	})
	t.Logf("slices %s after the pod", time.Since(began).Round(time.Millisecond))
	require.Len(t, slices, 2, "one slice per family")
	for _, slice := range slices {
		require.Equal(t, proxyName, slice.Labels[proxyLabel], "labels of the Service are copied")
		require.Equal(t, service.UID, slice.OwnerReferences[0].UID)
		endpoint := slice.Endpoints[0]
		require.True(t, *endpoint.Conditions.Ready)
		require.Equal(t, nodeName, *endpoint.NodeName)
		require.Equal(t, pod.UID, endpoint.TargetRef.UID)
	}

	first.kill(t)
	second := start(t, dir, "--max-endpoints-per-slice", "1")
	require.Equal(t, first.url, second.url)

	// The client of before goes on: same address, certificate and token.
	again, err := c.CoreV1().Services(testNamespace).Get(t.Context(), serviceName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, service, again)
	require.Equal(t, both, endpointAddresses(c.waitSlices(t, func(list []discoveryv1.EndpointSlice) bool { return len(list) == 2 })))

	c.createPod(t, "launcher-2", netip.MustParseAddr("10.244.1.11"))
	c.waitSlices(t, func(list []discoveryv1.EndpointSlice) bool {
		return endpointAddresses(list)["10.244.1.11"] == 1 && len(list) == 3
	})

	require.NoError(t, c.CoreV1().Services(testNamespace).Delete(t.Context(), serviceName, metav1.DeleteOptions{}))
	c.waitSlices(t, func(list []discoveryv1.EndpointSlice) bool { return len(list) == 0 })

	require.NoError(t, c.CoreV1().Namespaces().Delete(t.Context(), testNamespace, metav1.DeleteOptions{}))
	c.deletePods(t)
	eventually(t, "namespace removed", func(ctx context.Context) (bool, error) {
		_, err := c.CoreV1().Namespaces().Get(ctx, testNamespace, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	second.terminate(t)
}

// deletePods plays the kubelet: a bound Pod only goes when its node says so.
func (c cluster) deletePods(t *testing.T) {
	t.Helper()
	var now int64
	err := c.CoreV1().Pods(testNamespace).DeleteCollection(t.Context(),
		metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
	require.NoError(t, err)
}
