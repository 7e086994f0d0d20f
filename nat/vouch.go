// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// An agent sees the Pods of its own node only, so under externalTrafficPolicy Cluster it cannot tell a machine of another node from an
// address that somebody wrote into an EndpointSlice. The agent of that node can: it vouches for the addresses of its Pods in a condition of the
// Service, one for each node and written by that node alone. The API server lets nobody write it who may not write the Service's status, and
// who may could assign the public address as well.

// VouchPrefix begins the type of the conditions by which nodes vouch for endpoints; the name of the node follows.
const VouchPrefix = "verified.networking.cozystack.io/"

// ReasonPodFound is the reason of such a condition.
const ReasonPodFound = "PodFound"

// VouchMessage is the message of a condition that vouches for addresses.
func VouchMessage(addrs []netip.Addr) string { return joinAddrs(addrs) }

// vouch is the word of a node's agent that a living Pod of the Service's namespace has the address there.
type vouch struct {
	node string
	addr netip.Addr
}

// readVouches returns what the agents of all nodes vouch for, in no order that matters but always the same.
func readVouches(conditions []metav1.Condition) []vouch {
	var list []vouch
	for _, c := range conditions {
		node, is := strings.CutPrefix(c.Type, VouchPrefix)
		if !is || c.Status != metav1.ConditionTrue {
			continue
		}
		for text := range strings.SplitSeq(c.Message, ", ") {
			if a, err := ParseAddress(text); err == nil {
				list = append(list, vouch{node, a})
			}
		}
	}
	return list
}

// vouchesOf are those of a Service on which other nodes depend: none under policy Local.
func vouchesOf(o *corev1.Service) []vouch {
	if o.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster {
		return nil
	}
	return readVouches(o.Status.Conditions)
}

// unvouched reports whether a backend elsewhere lacks the word of a node that is still there.
func (e *Engine) unvouched(s *service, c choice) bool {
	if !e.config.VouchedOnly || !s.spread || c.local || !c.found() {
		return false
	}
	return !slices.ContainsFunc(c.nodes, func(node string) bool {
		return e.nodes[node] != nil && slices.Contains(s.vouches, vouch{node, c.addr})
	})
}

// agentless reports whether no agent runs where the backend is, so that nobody translates for it as its host, or vouches for it.
func (e *Engine) agentless(c choice) bool {
	return !slices.ContainsFunc(c.nodes, e.rails.runsAgent)
}
