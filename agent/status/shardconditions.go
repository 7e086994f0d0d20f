// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
)

// The conditions of an EgressShard.
const (
	// ShardReady is True when the node's data path keeps private sources in or translates them.
	ShardReady = "Ready"
	// ShardProgrammed is True when every address of the spec is translated to.
	ShardProgrammed = "Programmed"
)

// Reasons of ShardReady; with those of ShardProgrammed they are the ones in use, so verdicts with others are told in their words.
const (
	ReasonDatapathAttached    = "DatapathAttached"
	ReasonDatapathNotAttached = "DatapathNotAttached"
	ReasonUplinksMissing      = "UplinksMissing"
)

// returnRoute is said of a shard that is ready: an address that is not announced looks as healthy from here as one that is.
const returnRoute = "whether the network routes its addresses to this node is not known here"

// ObservedShard is an EgressShard as the API server last showed it.
type ObservedShard struct {
	Observed
	// Node is the target.
	Node   string
	Status nat.EgressShardStatus
}

// ObserveShard returns what of a shard matters here.
func ObserveShard(s *nat.EgressShard) ObservedShard {
	o := ObservedShard{Observed: Observed{UID: s.UID, ResourceVersion: s.ResourceVersion}, Node: s.Spec.TargetRef.Name, Status: s.Status}
	o.Status.Conditions = nil
	for _, c := range s.Status.Conditions {
		if c.Type == ShardReady || c.Type == ShardProgrammed {
			o.Conditions = append(o.Conditions, c)
		}
	}
	slices.SortFunc(o.Conditions, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return o
}

// SameAs reports whether both are the same shard with the same status.
func (o ObservedShard) SameAs(p ObservedShard) bool {
	return o.Node == p.Node && o.Observed.SameAs(p.Observed) && sameFields(o.Status, p.Status) &&
		slices.EqualFunc(o.Conditions, p.Conditions, func(a, b metav1.Condition) bool { return a.ObservedGeneration == b.ObservedGeneration })
}

// sameFields compares everything but the conditions.
func sameFields(a, b nat.EgressShardStatus) bool {
	return a.ShardAddressIPv4 == b.ShardAddressIPv4 && a.ShardAddressIPv6 == b.ShardAddressIPv6 &&
		a.NAT64Prefix == b.NAT64Prefix && a.ObservedGeneration == b.ObservedGeneration
}

// shardStatus is what a verdict comes to. The NAT64 prefix is empty whatever the spec asks for: this data path does not translate between
// the families.
func shardStatus(v nat.Verdict, have []metav1.Condition, now time.Time) nat.EgressShardStatus {
	s := nat.EgressShardStatus{ObservedGeneration: v.Generation, Conditions: []metav1.Condition{shardProgrammed(v), shardReady(v)}}
	for _, a := range v.Addresses {
		if a.Is4() {
			s.ShardAddressIPv4 = a.String()
		} else {
			s.ShardAddressIPv6 = a.String()
		}
	}
	for i := range s.Conditions {
		c := &s.Conditions[i]
		c.Message, c.ObservedGeneration = truncate(c.Message, maxMessage), v.Generation
		c.LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		if old := find(have, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return s
}

func shardProgrammed(v nat.Verdict) metav1.Condition {
	c := metav1.Condition{Type: ShardProgrammed, Status: metav1.ConditionFalse, Reason: string(v.Reason), Message: v.Message}
	switch {
	case v.Programmed:
		c.Status = metav1.ConditionTrue
	case v.Reason != nat.ReasonAddressUnassigned && v.Reason != nat.ReasonShardConflict:
		c.Reason = string(nat.ReasonFailed)
		c.Message = fmt.Sprintf("%s: %s", v.Reason, v.Message)
	}
	return c
}

// shardReady tells whether a shard is served at all; one of two is not, nor is one without uplinks or role.
func shardReady(v nat.Verdict) metav1.Condition {
	c := metav1.Condition{Type: ShardReady, Status: metav1.ConditionFalse, Reason: ReasonDatapathNotAttached, Message: v.Message}
	switch {
	case v.Reason == nat.ReasonUplinksMissing:
		c.Reason = ReasonUplinksMissing
	case v.Reason == nat.ReasonShardRoleOff, v.Reason == nat.ReasonShardConflict && len(v.Addresses) == 0:
	default:
		c.Status, c.Reason = metav1.ConditionTrue, ReasonDatapathAttached
		c.Message = "private sources leave this node with the shard's addresses or not at all; " + returnRoute
	}
	return c
}

// fields is the status as it is applied. An address that is there and should not be is written as empty: leaving it out would only take away
// what this field manager wrote itself.
func fields(want nat.EgressShardStatus, have nat.EgressShardStatus) map[string]any {
	status := map[string]any{"observedGeneration": want.ObservedGeneration}
	for name, value := range map[string][2]string{
		"shardAddressIPv4": {want.ShardAddressIPv4, have.ShardAddressIPv4},
		"shardAddressIPv6": {want.ShardAddressIPv6, have.ShardAddressIPv6},
		"nat64Prefix":      {want.NAT64Prefix, have.NAT64Prefix},
	} {
		if value[0] != "" || value[1] != "" {
			status[name] = value[0]
		}
	}
	var conditions []any
	for _, c := range want.Conditions {
		conditions = append(conditions, map[string]any{
			"type": c.Type, "status": string(c.Status), "reason": c.Reason, "message": c.Message,
			"observedGeneration": c.ObservedGeneration, "lastTransitionTime": c.LastTransitionTime.UTC().Format(time.RFC3339),
		})
	}
	status["conditions"] = conditions
	return status
}
