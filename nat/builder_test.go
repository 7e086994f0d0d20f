// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Builders of objects, so that a test row is one to five lines. A name is "namespace/name", a port "name:port/PROTOCOL" with name and
// protocol optional, an endpoint "address@node!rank" with rank one of serving, notready or nothing for ready.

// object is a builder that adds what it built to a set.
type object interface{ addTo(o Objects) }

func objects(list ...object) Objects {
	all := NewObjects()
	for _, o := range list {
		o.addTo(all)
	}
	return all
}

func keyOf(name string) Key {
	namespace, rest, _ := strings.Cut(name, "/")
	return Key{Namespace: namespace, Name: rest}
}

func meta(key Key) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}
}

func ptr[T any](v T) *T { return &v }

type svcBuilder struct{ *corev1.Service }

// svc is a delegated PortList Service without ports and addresses, policy Local.
func svc(name string) svcBuilder {
	s := &corev1.Service{ObjectMeta: meta(keyOf(name))}
	s.Labels = map[string]string{LabelProxyName: "cozy-proxy"}
	s.Annotations = map[string]string{}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	return svcBuilder{s}.age(0)
}

func (b svcBuilder) addTo(o Objects) {
	o.Services[Key{Namespace: b.Namespace, Name: b.Name}] = b.Service
}

// age sets the age in hours: the larger, the older.
func (b svcBuilder) age(hours int) svcBuilder {
	born := time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(hours) * time.Hour)
	b.CreationTimestamp = metav1.NewTime(born)
	return b
}

func (b svcBuilder) label(value string) svcBuilder {
	b.Labels[LabelProxyName] = value
	return b
}

func (b svcBuilder) annotate(name, value string) svcBuilder {
	b.Annotations[name] = value
	return b
}

func (b svcBuilder) whole() svcBuilder               { return b.annotate(AnnotationWholeIP, "true") }
func (b svcBuilder) icmp() svcBuilder                { return b.annotate(AnnotationAllowICMP, "true") }
func (b svcBuilder) primary(value string) svcBuilder { return b.annotate(AnnotationPrimary, value) }
func (b svcBuilder) hostname(name string) svcBuilder {
	return b.ingress(corev1.LoadBalancerIngress{Hostname: name})
}
func (b svcBuilder) kind(t corev1.ServiceType) svcBuilder { b.Spec.Type = t; return b }

func (b svcBuilder) spread() svcBuilder {
	b.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
	return b
}

func (b svcBuilder) ingress(in corev1.LoadBalancerIngress) svcBuilder {
	b.Status.LoadBalancer.Ingress = append(b.Status.LoadBalancer.Ingress, in)
	return b
}

func (b svcBuilder) ip(addrs ...string) svcBuilder {
	for _, a := range addrs {
		b.ingress(corev1.LoadBalancerIngress{IP: a})
	}
	return b
}

func (b svcBuilder) sources(ranges ...string) svcBuilder {
	b.Spec.LoadBalancerSourceRanges = ranges
	return b
}

func (b svcBuilder) ports(list ...string) svcBuilder {
	for _, text := range list {
		name, port, protocol := parsePort(text)
		b.Spec.Ports = append(b.Spec.Ports, corev1.ServicePort{Name: name, Port: port, Protocol: protocol})
	}
	return b
}

func parsePort(text string) (name string, port int32, protocol corev1.Protocol) {
	if before, after, named := strings.Cut(text, ":"); named {
		name, text = before, after
	}
	number, proto, _ := strings.Cut(text, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil {
		panic(err)
	}
	return name, int32(n), corev1.Protocol(proto)
}

type sliceBuilder struct{ *discoveryv1.EndpointSlice }

// slice lists endpoints of a Service; its family is that of the first address, IPv4 when there is none to see.
func slice(service, name string, endpoints ...string) sliceBuilder {
	key := keyOf(service)
	s := &discoveryv1.EndpointSlice{ObjectMeta: meta(Key{Namespace: key.Namespace, Name: name})}
	s.Labels = map[string]string{labelSliceOfService: key.Name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	for i, text := range endpoints {
		e := parseEndpoint(text)
		if a, err := netip.ParseAddr(e.Addresses[0]); i == 0 && err == nil && a.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	return sliceBuilder{s}
}

func parseEndpoint(text string) discoveryv1.Endpoint {
	text, rank, _ := strings.Cut(text, "!")
	addr, node, placed := strings.Cut(text, "@")
	e := discoveryv1.Endpoint{Addresses: []string{addr}}
	if placed {
		e.NodeName = ptr(node)
	}
	switch rank {
	case "serving":
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)}
	case "notready":
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false), Terminating: ptr(false)}
	case "ready":
		e.Conditions = discoveryv1.EndpointConditions{Ready: ptr(true), Serving: ptr(true), Terminating: ptr(false)}
	}
	return e
}

func (b sliceBuilder) addTo(o Objects) {
	o.Slices[Key{Namespace: b.Namespace, Name: b.Name}] = b.EndpointSlice
}

func (b sliceBuilder) family(t discoveryv1.AddressType) sliceBuilder {
	b.AddressType = t
	return b
}

func (b sliceBuilder) serves(list ...string) sliceBuilder {
	for _, text := range list {
		name, port, protocol := parsePort(text)
		p := discoveryv1.EndpointPort{Name: ptr(name), Port: ptr(port)}
		if protocol != "" {
			p.Protocol = ptr(protocol)
		}
		b.Ports = append(b.Ports, p)
	}
	return b
}

type podBuilder struct{ *corev1.Pod }

// pod runs on node-a.
func pod(name string, addrs ...string) podBuilder {
	p := &corev1.Pod{ObjectMeta: meta(keyOf(name))}
	p.Spec.NodeName = "node-a"
	p.Status.Phase = corev1.PodRunning
	for _, a := range addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	return podBuilder{p}
}

func (b podBuilder) addTo(o Objects)                    { o.Pods[Key{Namespace: b.Namespace, Name: b.Name}] = b.Pod }
func (b podBuilder) on(node string) podBuilder          { b.Spec.NodeName = node; return b }
func (b podBuilder) phase(p corev1.PodPhase) podBuilder { b.Status.Phase = p; return b }
func (b podBuilder) hostNetwork() podBuilder            { b.Spec.HostNetwork = true; return b }

type nodeBuilder struct{ *corev1.Node }

func node(name string, addrs ...string) nodeBuilder {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, a := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return nodeBuilder{n}
}

func (b nodeBuilder) addTo(o Objects)                  { o.Nodes[b.Name] = b.Node }
func (b nodeBuilder) pods(cidrs ...string) nodeBuilder { b.Spec.PodCIDRs = cidrs; return b }

// vmBuilder is a machine: a Pod and the slices that list it for one Service.
type vmBuilder struct {
	service, node, rank string
	addrs, ports        []string
}

// vm runs on node-a and is ready.
func vm(service string, addrs ...string) vmBuilder {
	return vmBuilder{service: service, node: "node-a", addrs: addrs}
}

func (b vmBuilder) on(node string) vmBuilder        { b.node = node; return b }
func (b vmBuilder) ranked(rank string) vmBuilder    { b.rank = "!" + rank; return b }
func (b vmBuilder) serves(list ...string) vmBuilder { b.ports = list; return b }

func (b vmBuilder) addTo(o Objects) {
	name := strings.ReplaceAll(strings.Join(append([]string{b.service, b.node}, b.addrs...), "-"), "/", "-")
	pod(keyOf(b.service).Namespace+"/"+name, b.addrs...).on(b.node).addTo(o)
	for _, a := range b.addrs {
		slice(b.service, name+"-"+a, a+"@"+b.node+b.rank).serves(b.ports...).addTo(o)
	}
}
