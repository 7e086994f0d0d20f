// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// What is kept of an object is written out field by field, so that a new field of an API costs no memory: a Pod comes to a hundredth.
// Whoever has package nat read another field adds it here; TestStrippedObjectsDecideTheSame fails otherwise for the fields of the samples.

// stripper makes a kind.strip of a function on the type.
func stripper[T metav1.Object](strip func(T) T) func(any) (metav1.Object, error) {
	return func(object any) (metav1.Object, error) {
		typed, ok := object.(T)
		if !ok {
			var want T
			return nil, fmt.Errorf("got %T instead of %T", object, want)
		}
		return strip(typed), nil
	}
}

// identity is the part of the metadata that every kind keeps.
func identity(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: o.Name, Namespace: o.Namespace, UID: o.UID, ResourceVersion: o.ResourceVersion, CreationTimestamp: o.CreationTimestamp,
	}
}

func stripService(o *corev1.Service) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: identity(&o.ObjectMeta),
		Spec: corev1.ServiceSpec{
			Type:                     o.Spec.Type,
			ExternalTrafficPolicy:    o.Spec.ExternalTrafficPolicy,
			LoadBalancerSourceRanges: o.Spec.LoadBalancerSourceRanges,
		},
	}
	s.Labels = pick(o.Labels, nat.LabelProxyName)
	s.Annotations = pick(o.Annotations, nat.AnnotationWholeIP, nat.AnnotationAllowICMP, nat.AnnotationPrimary)
	for _, p := range o.Spec.Ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: p.TargetPort})
	}
	for _, in := range o.Status.LoadBalancer.Ingress {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: in.IP, Hostname: in.Hostname, IPMode: in.IPMode})
	}
	s.Status.Conditions = status.Kept(o)
	return s
}

func stripSlice(o *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: identity(&o.ObjectMeta), AddressType: o.AddressType}
	s.Labels = pick(o.Labels, discoveryv1.LabelServiceName)
	for _, e := range o.Endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: e.Addresses, Conditions: e.Conditions, NodeName: e.NodeName})
	}
	for _, p := range o.Ports {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	return s
}

func stripPod(o *corev1.Pod) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: identity(&o.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: o.Spec.NodeName, HostNetwork: o.Spec.HostNetwork},
		Status:     corev1.PodStatus{Phase: o.Status.Phase, PodIPs: o.Status.PodIPs},
	}
}

func samePod(a, b metav1.Object) bool {
	p, q := a.(*corev1.Pod), b.(*corev1.Pod)
	return p.UID == q.UID && reflect.DeepEqual(p.Spec, q.Spec) && reflect.DeepEqual(p.Status, q.Status)
}

func stripNode(o *corev1.Node, labels ...string) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: identity(&o.ObjectMeta),
		Spec:       corev1.NodeSpec{PodCIDR: o.Spec.PodCIDR, PodCIDRs: o.Spec.PodCIDRs},
		Status:     corev1.NodeStatus{Addresses: o.Status.Addresses},
	}
	n.Labels = pick(o.Labels, labels...)
	return n
}

func sameNode(a, b metav1.Object) bool {
	n, m := a.(*corev1.Node), b.(*corev1.Node)
	return n.UID == m.UID && maps.Equal(n.Labels, m.Labels) && reflect.DeepEqual(n.Spec, m.Spec) && reflect.DeepEqual(n.Status, m.Status)
}

// stripShard also converts. Unknown fields are left out, as an older or a newer CRD has others; one that does not convert fails alone.
func stripShard(object any) (metav1.Object, error) {
	switch o := object.(type) {
	case *nat.EgressShard:
		return o, nil
	case *unreadableShard:
		return o, nil
	case *unstructured.Unstructured:
		shard := &nat.EgressShard{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, shard); err != nil {
			return newUnreadableShard(o, err), nil
		}
		shard.ManagedFields = nil
		return shard, nil
	}
	return nil, fmt.Errorf("got %T instead of an EgressShard", object)
}

// pick returns those of the entries that are wanted, nil when there are none.
func pick(from map[string]string, names ...string) map[string]string {
	var picked map[string]string
	for _, name := range names {
		value, ok := from[name]
		if !ok {
			continue
		}
		if picked == nil {
			picked = make(map[string]string, len(names))
		}
		picked[name] = value
	}
	return picked
}
