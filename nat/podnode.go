// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// podAddresses returns the addresses that a Pod vouches for on this node: none for a Pod elsewhere, one that ended (its address may be
// another Pod's by now) or one that shares the node's network.
func podAddresses(o *corev1.Pod, node string) []netip.Addr {
	if o == nil || o.Spec.NodeName != node || o.Spec.HostNetwork ||
		o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed {
		return nil
	}
	var addrs []netip.Addr
	for _, ip := range o.Status.PodIPs {
		if a, err := ParseAddress(ip.IP); err == nil {
			addrs = append(addrs, a)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// nodeFacts are the addresses and pod ranges that a Node object gives.
type nodeFacts struct {
	addresses []netip.Addr
	podCIDRs  []netip.Prefix
	// internal are the first InternalIPs, by family.
	internal [2]netip.Addr
	// agent is true for a Node that runs the agent.
	agent bool
}

func newNode(o *corev1.Node, agents labels.Selector) *nodeFacts {
	if o == nil {
		return nil
	}
	n := &nodeFacts{agent: agents == nil || agents.Matches(labels.Set(o.Labels))}
	for _, a := range o.Status.Addresses {
		// Hostnames are in the same list; a cloud may put an address there, so every type is read.
		if addr, err := ParseAddress(a.Address); err == nil {
			n.addresses = append(n.addresses, addr)
			if f := familyOf(addr); a.Type == corev1.NodeInternalIP && !n.internal[f].IsValid() {
				n.internal[f] = addr
			}
		}
	}
	cidrs := o.Spec.PodCIDRs
	if len(cidrs) == 0 && o.Spec.PodCIDR != "" {
		cidrs = []string{o.Spec.PodCIDR}
	}
	for _, c := range cidrs {
		if p, err := netip.ParsePrefix(c); err == nil && !p.Addr().Is4In6() {
			n.podCIDRs = append(n.podCIDRs, p.Masked())
		}
	}
	slices.SortFunc(n.addresses, netip.Addr.Compare)
	n.addresses = slices.Compact(n.addresses)
	return n
}

func (n *nodeFacts) equal(o *nodeFacts) bool {
	if n == nil || o == nil {
		return n == o
	}
	return n.agent == o.agent && n.internal == o.internal && slices.Equal(n.addresses, o.addresses) && slices.Equal(n.podCIDRs, o.podCIDRs)
}
