// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects is a set of Kubernetes objects by name. It serves as a complete set and as a batch of changes, in which nil stands for
// an object that is gone. The objects are read, never written.
type Objects struct {
	Services map[Key]*corev1.Service
	Slices   map[Key]*discoveryv1.EndpointSlice
	Pods     map[Key]*corev1.Pod
	Nodes    map[string]*corev1.Node
	Shards   map[Key]*EgressShard
}

// NewObjects returns an empty set with all its maps made.
func NewObjects() Objects {
	return Objects{
		Services: map[Key]*corev1.Service{},
		Slices:   map[Key]*discoveryv1.EndpointSlice{},
		Pods:     map[Key]*corev1.Pod{},
		Nodes:    map[string]*corev1.Node{},
		Shards:   map[Key]*EgressShard{},
	}
}

// Len counts the objects of all kinds.
func (o Objects) Len() int {
	return len(o.Services) + len(o.Slices) + len(o.Pods) + len(o.Nodes) + len(o.Shards)
}

// EgressShard is the part of network.datumapis.com/v1alpha1 EgressShard that natplane reads; fields that it does not know are left
// alone, so an older or newer CRD does no harm.
type EgressShard struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              EgressShardSpec   `json:"spec"`
	Status            EgressShardStatus `json:"status,omitempty"`
}

// EgressShardSpec says which node translates and what to.
type EgressShardSpec struct {
	TargetRef EgressShardTarget `json:"targetRef"`
	// ShardAddressIPv6 and ShardAddressIPv4 are empty until claimed, and write-once.
	ShardAddressIPv6 string `json:"shardAddressIPv6,omitempty"`
	ShardAddressIPv4 string `json:"shardAddressIPv4,omitempty"`
	// NAT64Prefix comes together with ShardAddressIPv4; nftables cannot translate between families, so it is never served.
	NAT64Prefix string `json:"nat64Prefix,omitempty"`
	// Drain asks the placing side to send no new clients; translation goes on.
	Drain bool `json:"drain,omitempty"`
}

// EgressShardTarget names the node of a shard.
type EgressShardTarget struct {
	Kind string `json:"kind,omitempty"`
	Name string `json:"name"`
}

// EgressShardStatus is what the data path is programmed with.
type EgressShardStatus struct {
	ShardAddressIPv6   string             `json:"shardAddressIPv6,omitempty"`
	ShardAddressIPv4   string             `json:"shardAddressIPv4,omitempty"`
	NAT64Prefix        string             `json:"nat64Prefix,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Merge adds a later batch to an earlier one.
func (o Objects) Merge(later Objects) {
	maps.Copy(o.Services, later.Services)
	maps.Copy(o.Slices, later.Slices)
	maps.Copy(o.Pods, later.Pods)
	maps.Copy(o.Nodes, later.Nodes)
	maps.Copy(o.Shards, later.Shards)
}
