// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
)

const (
	nodeName  = "node-a"
	proxyName = "natplane"
)

func policy() nat.Config {
	return nat.Config{
		Node: nodeName, ProxyNames: []string{proxyName}, ShardCIDRs: nat.DefaultShardCIDRs(), ShardRole: nat.ShardAuto,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00:10:244::/48")},
	}
}

// workload is a machine with a Service: two objects and a slice for each family.
type workload struct {
	node     string
	key      nat.Key
	whole    bool
	publics  []netip.Addr
	backends []netip.Addr
}

// otherNode is where the machines are that are not here.
const otherNode = "node-001"

// fleet gives n machines with a public IPv4 address each, by turns with the whole address and with two ports, and 100 Nodes beside
// them. The first local ones are on this node. In a cluster most machines are on other nodes, and cost one element instead of five.
func fleet(n, local int) nat.Objects {
	all := nat.NewObjects()
	for i := range 100 {
		name := fmt.Sprintf("node-%03d", i)
		all.Nodes[name] = &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.0.0/16", 100+i)}},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", i+1)},
			}},
		}
	}
	for i := range n {
		w := machine(i)
		if i >= local {
			w.node = otherNode
		}
		w.addTo(all)
	}
	return all
}

func machine(i int) workload {
	return workload{
		node:     nodeName,
		key:      nat.Key{Namespace: fmt.Sprintf("tenant-%d", i%100), Name: fmt.Sprintf("vm-instance-%d", i)},
		whole:    i%2 == 0,
		publics:  []netip.Addr{numbered(100, i)},
		backends: []netip.Addr{numbered(10, i)},
	}
}

func numbered(first byte, i int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(i >> 16), byte(i >> 8), byte(i)})
}

func (w workload) addTo(o nat.Objects) {
	o.Services[w.key] = w.service()
	o.Pods[w.key] = w.pod()
	for i, backend := range w.backends {
		s := w.slice(i, backend)
		o.Slices[nat.Key{Namespace: s.Namespace, Name: s.Name}] = s
	}
}

func (w workload) meta(suffix string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: w.key.Namespace, Name: w.key.Name + suffix,
		CreationTimestamp: metav1.NewTime(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)),
	}
}

func (w workload) service() *corev1.Service {
	s := &corev1.Service{ObjectMeta: w.meta("")}
	s.Labels = map[string]string{nat.LabelProxyName: proxyName}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	if w.whole {
		s.Annotations = map[string]string{nat.AnnotationWholeIP: "true"}
		s.Spec.Ports = []corev1.ServicePort{{Port: 65535}}
	} else {
		s.Annotations = map[string]string{nat.AnnotationAllowICMP: "true"}
		s.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "https", Port: 443}}
	}
	for _, a := range w.publics {
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: a.String()})
	}
	return s
}

func (w workload) pod() *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: w.meta("")}
	p.Spec.NodeName = w.node
	p.Status.Phase = corev1.PodRunning
	for _, a := range w.backends {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	return p
}

func (w workload) slice(i int, endpoints ...netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: w.meta(fmt.Sprintf("-%d", i)), AddressType: discoveryv1.AddressTypeIPv4}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: w.key.Name}
	for _, port := range []struct {
		name   string
		number int32
	}{{"http", 8080}, {"https", 8443}} {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port.name, Port: &port.number})
	}
	for _, a := range endpoints {
		if a.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		node := w.node
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a.String()}, NodeName: &node})
	}
	return s
}
