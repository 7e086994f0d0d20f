// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// The engine keeps of each object only what policy needs, validated, sorted and comparable: an object that changed elsewhere costs
// nothing further.

// designation is the answer of the primaryEgress annotation.
type designation int

const (
	undesignated designation = iota
	designated
	excluded
)

type servicePort struct {
	protocol Protocol
	port     uint16
	name     string
}

// service is a delegated Service (R1).
type service struct {
	key       Key
	created   int64 // Unix seconds: the precision of creationTimestamp
	whole     bool
	echo      bool
	spread    bool // externalTrafficPolicy: Cluster
	primary   designation
	addresses []netip.Addr // valid, sorted, distinct; whether they may be used is another question
	invalid   []string
	ignored   bool          // the status has entries that are not ours to translate
	ports     []servicePort // sorted, distinct
	sources   [2]Sources
	notes     []string
	vouches   []vouch
}

// CompareKeys orders by namespace and name.
func CompareKeys(a, b Key) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// newService returns nil for a Service that is not delegated.
func newService(o *corev1.Service, proxyNames []string) *service {
	if o == nil || o.Spec.Type != corev1.ServiceTypeLoadBalancer || !slices.Contains(proxyNames, o.Labels[LabelProxyName]) {
		return nil
	}
	s := &service{
		key:     Key{Namespace: o.Namespace, Name: o.Name},
		created: o.CreationTimestamp.Unix(),
		whole:   o.Annotations[AnnotationWholeIP] == annotationTrue,
		spread:  o.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyCluster,
	}
	switch o.Annotations[AnnotationPrimary] {
	case annotationTrue:
		s.primary = designated
	case annotationFalse:
		s.primary = excluded
	}
	s.vouches = vouchesOf(o)
	s.readIngress(o.Status.LoadBalancer.Ingress)
	s.sources, s.notes = parseSources(o.Spec.LoadBalancerSourceRanges)
	if !s.whole {
		s.echo = o.Annotations[AnnotationAllowICMP] == annotationTrue
		s.readPorts(o.Spec.Ports)
	}
	return s
}

func (s *service) readIngress(ingress []corev1.LoadBalancerIngress) {
	for _, in := range ingress {
		if in.IP == "" || (in.IPMode != nil && *in.IPMode == corev1.LoadBalancerIPModeProxy) {
			s.ignored = true // a hostname, or an address whose proxy sends to node ports: not ours to translate
			continue
		}
		a, err := ParseAddress(in.IP)
		if err != nil {
			s.invalid = append(s.invalid, fmt.Sprintf("status.loadBalancer.ingress: %v", err))
			continue
		}
		s.addresses = append(s.addresses, a)
	}
	slices.SortFunc(s.addresses, netip.Addr.Compare)
	s.addresses = slices.Compact(s.addresses)
	slices.Sort(s.invalid)
}

func (s *service) readPorts(ports []corev1.ServicePort) {
	for _, p := range ports {
		protocol, ok := protocolOf(p.Protocol)
		if !ok || p.Port < 1 || p.Port > 65535 {
			s.notes = append(s.notes, fmt.Sprintf("port %d/%s cannot be forwarded", p.Port, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
			continue
		}
		s.ports = append(s.ports, servicePort{protocol: protocol, port: uint16(p.Port), name: p.Name})
	}
	slices.SortFunc(s.ports, func(a, b servicePort) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), cmp.Compare(a.port, b.port), strings.Compare(a.name, b.name))
	})
	s.ports = slices.CompactFunc(s.ports, func(a, b servicePort) bool { return a.protocol == b.protocol && a.port == b.port })
	slices.Sort(s.notes)
}

// protocolOf reads a Kubernetes protocol; empty means TCP there.
func protocolOf(p corev1.Protocol) (Protocol, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP, true
	case corev1.ProtocolUDP:
		return UDP, true
	case corev1.ProtocolSCTP:
		return SCTP, true
	}
	return 0, false
}

func (s *service) equal(o *service) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.key == o.key && s.created == o.created && s.whole == o.whole && s.echo == o.echo && s.spread == o.spread &&
		s.primary == o.primary && slices.Equal(s.addresses, o.addresses) && slices.Equal(s.invalid, o.invalid) && s.ignored == o.ignored &&
		slices.Equal(s.ports, o.ports) && s.sources[ipv4].Equal(o.sources[ipv4]) && s.sources[ipv6].Equal(o.sources[ipv6]) &&
		slices.Equal(s.notes, o.notes) && slices.Equal(s.vouches, o.vouches)
}
