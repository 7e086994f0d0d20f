// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const (
	// writers make objects at a time.
	writers = 32
	// tenants are the namespaces that the objects are in.
	tenants = 20

	probeNamespace = "probe"
	probeName      = "vm-instance-probe"
)

// benchPublic is the address of a Service, from the range for benchmarks (RFC 2544).
func benchPublic(i int) string {
	return netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8), byte(i)}).String()
}

func benchTenant(i int) string { return fmt.Sprintf("tenant-%d", i%tenants) }

// prepare makes the nodes, the namespaces, and the machine whose address changes.
func (b *clusterBench) prepare(ctx context.Context) error {
	for _, n := range []*testenv.Node{b.topo.NodeA, b.topo.NodeB} {
		node, err := b.server.core.Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		for _, a := range n.Addrs {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		if _, err := b.server.core.Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	names := []string{probeNamespace}
	for i := range tenants {
		names = append(names, benchTenant(i))
	}
	for _, name := range names {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := b.server.core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return b.makeMachine(ctx, probeNamespace, probeName, b.topo.Web.Addr4().String(), true)
}

// grow makes Services with machines on this node until there are n, one address each, by turns with the whole address and with ports.
func (b *clusterBench) grow(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := b.made; i < n-1; i++ { // one more is the machine whose address changes
		group.Go(func() error {
			namespace, name := benchTenant(i), fmt.Sprintf("vm-instance-%d", i)
			if err := b.makeMachine(ctx, namespace, name, numbered(10, 1<<23+i).String(), i%2 == 0); err != nil {
				return err
			}
			return b.assign(ctx, namespace, name, benchPublic(i))
		})
	}
	b.made = n - 1
	return group.Wait()
}

// makeMachine makes a Pod and a delegated Service as the chart of a virtual machine does. Node ports would run out at some thousands.
func (b *clusterBench) makeMachine(ctx context.Context, namespace, name, addr string, whole bool) error {
	pods := b.server.core.Pods(namespace)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name, "vm.kubevirt.io/name": name}},
		Spec:       corev1.PodSpec{NodeName: nodeName, Containers: []corev1.Container{{Name: "compute", Image: "virt-launcher"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: addr, PodIPs: []corev1.PodIP{{IP: addr}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if _, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("pod %s/%s: %w", namespace, name, err)
	}
	no := false
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{nat.LabelProxyName: proxyName},
			Annotations: map[string]string{nat.AnnotationWholeIP: fmt.Sprint(whole)},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &no, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{{Name: "port-80", Port: 80}, {Name: "port-443", Port: 443}},
		},
	}
	if _, err = b.server.core.Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("service %s/%s: %w", namespace, name, err)
	}
	return nil
}

// assign writes an address as a load-balancer controller does.
func (b *clusterBench) assign(ctx context.Context, namespace, name, addr string) error {
	text := fmt.Appendf(nil, `{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, addr)
	_, err := b.server.core.Services(namespace).Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("address of service %s/%s: %w", namespace, name, err)
	}
	return nil
}
