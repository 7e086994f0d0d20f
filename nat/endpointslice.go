// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// rank orders endpoints, the best first (R3).
type rank uint8

const (
	ready rank = iota
	serving
	notReady
)

type endpoint struct {
	addr netip.Addr
	node string
	rank rank
	// workload is what is known of addr when node is this one.
	workload *workload
}

func (e endpoint) equal(o endpoint) bool {
	return e.addr == o.addr && e.node == o.node && e.rank == o.rank
}

// endpointSlice is one EndpointSlice of one family.
type endpointSlice struct {
	key       Key
	service   string
	entry     *entry // of service
	family    family
	endpoints []endpoint
	ports     []servicePort // port is the target port; sorted by protocol and name, the first of each counts
	problems  []string
}

// newSlice returns nil for a slice that belongs to no Service or holds no addresses of a family.
func newSlice(o *discoveryv1.EndpointSlice) *endpointSlice {
	if o == nil || o.Labels[labelSliceOfService] == "" {
		return nil
	}
	s := &endpointSlice{
		key:     Key{Namespace: o.Namespace, Name: o.Name},
		service: o.Labels[labelSliceOfService],
	}
	switch o.AddressType {
	case discoveryv1.AddressTypeIPv4:
		s.family = ipv4
	case discoveryv1.AddressTypeIPv6:
		s.family = ipv6
	default:
		s.problems = []string{fmt.Sprintf("EndpointSlice %s: address type %q is not served", o.Name, o.AddressType)}
		return s
	}
	for i := range o.Endpoints {
		s.readEndpoint(&o.Endpoints[i])
	}
	s.readPorts(o.Ports)
	return s
}

func (s *endpointSlice) readPorts(ports []discoveryv1.EndpointPort) {
	for _, p := range ports {
		if p.Port == nil || *p.Port < 1 || *p.Port > 65535 {
			continue
		}
		var sp servicePort
		sp.port = uint16(*p.Port)
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		ok := false
		if sp.protocol, ok = protocolOf(protocol); !ok {
			continue
		}
		if p.Name != nil {
			sp.name = *p.Name
		}
		s.ports = append(s.ports, sp)
	}
	s.ports = distinctTargets(s.ports)
}

// distinctTargets sorts by protocol and name, in place, and keeps the first of those that have both in common.
func distinctTargets(ports []servicePort) []servicePort {
	compare := func(a, b servicePort) int {
		return cmp.Or(cmp.Compare(a.protocol, b.protocol), strings.Compare(a.name, b.name))
	}
	slices.SortStableFunc(ports, compare)
	return slices.CompactFunc(ports, func(a, b servicePort) bool { return compare(a, b) == 0 })
}

func (s *endpointSlice) readEndpoint(e *discoveryv1.Endpoint) {
	ep := endpoint{rank: rankOf(e.Conditions)}
	if e.NodeName != nil {
		ep.node = *e.NodeName
	}
	if len(e.Addresses) == 0 {
		s.refuse("an endpoint has no address")
	}
	for _, text := range e.Addresses {
		a, err := ParseAddress(text)
		switch {
		case err != nil:
			s.refuse(err.Error())
		case familyOf(a) != s.family:
			s.refuse(fmt.Sprintf("%s is not an %s address", a, s.family))
		case ep.node == "":
			s.refuse(fmt.Sprintf("endpoint %s names no node, so no node can vouch for it", a))
		default:
			ep.addr = a
			s.endpoints = append(s.endpoints, ep)
		}
	}
}

func (s *endpointSlice) refuse(why string) {
	s.problems = append(s.problems, fmt.Sprintf("EndpointSlice %s: %s", s.key.Name, why))
}

// rankOf follows the API: nil ready counts as true, nil serving as ready, nil terminating as false. With publishNotReadyAddresses a
// terminating endpoint is ready without serving, and wants its connections like one that serves.
func rankOf(c discoveryv1.EndpointConditions) rank {
	isReady := c.Ready == nil || *c.Ready
	isServing := isReady
	if c.Serving != nil {
		isServing = *c.Serving
	}
	terminating := c.Terminating != nil && *c.Terminating
	switch {
	case isReady && !terminating:
		return ready
	case isServing || isReady:
		return serving
	}
	return notReady
}

func (s *endpointSlice) equal(o *endpointSlice) bool {
	if s == nil || o == nil {
		return s == o
	}
	return s.key == o.key && s.service == o.service && s.family == o.family && slices.EqualFunc(s.endpoints, o.endpoints, endpoint.equal) &&
		slices.Equal(s.ports, o.ports) && slices.Equal(s.problems, o.problems)
}
