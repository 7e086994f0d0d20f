// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
)

// ref names an object across files. The namespace of a Node is empty.
type ref struct {
	kind string
	key  nat.Key
}

// String is "Kind namespace/name", as people write it.
func (r ref) String() string {
	if r.key.Namespace == "" {
		return r.kind + " " + r.key.Name
	}
	return r.kind + " " + r.key.String()
}

// apiVersions lists the kinds that are read, each in the one version that is.
func apiVersions() map[string]string {
	return map[string]string{
		"Service":       "v1",
		"Pod":           "v1",
		"Node":          "v1",
		"EndpointSlice": "discovery.k8s.io/v1",
		"EgressShard":   "network.datumapis.com/v1alpha1",
	}
}

// newObject returns an empty object of a kind listed by apiVersions.
func newObject(kind string) metav1.Object {
	switch kind {
	case "Service":
		return &corev1.Service{}
	case "Pod":
		return &corev1.Pod{}
	case "Node":
		return &corev1.Node{}
	case "EndpointSlice":
		return &discoveryv1.EndpointSlice{}
	case "EgressShard":
		return &nat.EgressShard{}
	}
	return nil
}

// put stores an object under its name; a nil object is stored as a typed nil, which says that it is gone.
func put(objects nat.Objects, r ref, obj metav1.Object) {
	switch r.kind {
	case "Service":
		v, _ := obj.(*corev1.Service)
		objects.Services[r.key] = v
	case "Pod":
		v, _ := obj.(*corev1.Pod)
		objects.Pods[r.key] = v
	case "Node":
		v, _ := obj.(*corev1.Node)
		objects.Nodes[r.key.Name] = v
	case "EndpointSlice":
		v, _ := obj.(*discoveryv1.EndpointSlice)
		objects.Slices[r.key] = v
	case "EgressShard":
		v, _ := obj.(*nat.EgressShard)
		objects.Shards[r.key] = v
	}
}
