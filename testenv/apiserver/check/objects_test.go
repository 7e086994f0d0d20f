// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const (
	testNamespace = "tenant-a"
	nodeName      = "node-a"
	serviceName   = "web"
	proxyLabel    = "service.kubernetes.io/service-proxy-name"
	proxyName     = "cozy-proxy"
)

// cluster creates and reads objects of one namespace.
type cluster struct {
	*kubernetes.Clientset
}

func connect(t *testing.T, cfg *rest.Config) cluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	require.NoError(t, err)
	return cluster{client}
}

func (c cluster) createNamespace(t *testing.T) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testNamespace}}
	_, err := c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	require.NoError(t, err)
}

func (c cluster) createNode(t *testing.T) {
	t.Helper()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, PodCIDR: "10.244.1.0/24"},
	}
	node, err := c.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	require.Empty(t, node.Spec.Taints, "nothing marks the node not ready")
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "198.51.100.1"}}
	_, err = c.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	require.NoError(t, err)
}

// createService makes a delegated dual-stack Service with a public address.
func (c cluster) createService(t *testing.T) *corev1.Service {
	t.Helper()
	policy, noNodePorts := corev1.IPFamilyPolicyRequireDualStack, false
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: serviceName, Labels: map[string]string{proxyLabel: proxyName}},
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy:         corev1.ServiceExternalTrafficPolicyLocal,
			AllocateLoadBalancerNodePorts: &noNodePorts,
			IPFamilyPolicy:                &policy,
			Selector:                      map[string]string{"app": serviceName},
			Ports:                         []corev1.ServicePort{{Port: 65535}},
		},
	}
	svc, err := c.CoreV1().Services(testNamespace).Create(t.Context(), svc, metav1.CreateOptions{})
	require.NoError(t, err)
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.10"}}
	svc, err = c.CoreV1().Services(testNamespace).UpdateStatus(t.Context(), svc, metav1.UpdateOptions{})
	require.NoError(t, err)
	return svc
}

// createPod makes a ready Pod of the Service, as a kubelet would leave it.
func (c cluster) createPod(t *testing.T, name string, addresses ...netip.Addr) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": serviceName}},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "compute", Image: "virt-launcher"}}},
	}
	pod, err := c.CoreV1().Pods(testNamespace).Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	pod.Status.PodIP = addresses[0].String()
	for _, a := range addresses {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	pod, err = c.CoreV1().Pods(testNamespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	return pod
}

// waitSlices polls the slices of the Service until done accepts them.
func (c cluster) waitSlices(t *testing.T, done func([]discoveryv1.EndpointSlice) bool) []discoveryv1.EndpointSlice {
	t.Helper()
	var found []discoveryv1.EndpointSlice
	eventually(t, "EndpointSlices", func(ctx context.Context) (bool, error) {
		list, err := c.DiscoveryV1().EndpointSlices(testNamespace).List(ctx, metav1.ListOptions{
			LabelSelector: discoveryv1.LabelServiceName + "=" + serviceName,
		})
		if err != nil {
			return false, err
		}
		found = list.Items
		return done(found), nil
	})
	return found
}

// eventually polls until the condition holds and fails the test on an error.
func eventually(t *testing.T, what string, condition wait.ConditionWithContextFunc) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), poll, effectLimit, true, condition)
	require.NoError(t, err, what)
}

// endpointAddresses counts the endpoints per address over all slices.
func endpointAddresses(list []discoveryv1.EndpointSlice) map[string]int {
	count := map[string]int{}
	for _, slice := range list {
		for _, endpoint := range slice.Endpoints {
			for _, address := range endpoint.Addresses {
				count[address]++
			}
		}
	}
	return count
}
