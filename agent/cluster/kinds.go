// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// Names of the kinds, as problems and logs call them.
const (
	services       = "Services"
	endpointSlices = "EndpointSlices"
	pods           = "Pods"
	nodes          = "Nodes"
	shards         = "EgressShards"
)

// kind is one kind of object: how it is read, what is kept of it and where it goes.
type kind struct {
	name     string
	expected runtime.Object
	list     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// selector narrows both on the server's side.
	selector metav1.ListOptions
	// strip returns what is kept of an object; it accepts what it returned before.
	strip func(any) (metav1.Object, error)
	// put stores an object, or nil, in a batch.
	put func(nat.Objects, nat.Key, metav1.Object)
	// same, when set, tells that two versions say the same, so that heartbeats wake nobody.
	same func(a, b metav1.Object) bool
	// observe, when set, returns what the status writer has to know.
	observe func(metav1.Object) status.Observed
	// optional, when set, reports whether the server knows the kind at all.
	optional func(context.Context) (bool, error)
}

// shardResource is the EgressShard of the contract.
func shardResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "network.datumapis.com", Version: "v1alpha1", Resource: "egressshards"}
}

func newKinds(c *clients, o Options) ([]*kind, error) {
	delegated, err := labels.NewRequirement(nat.LabelProxyName, selection.In, o.ProxyNames)
	if err != nil {
		return nil, fmt.Errorf("proxy names %q: %w", o.ProxyNames, err)
	}
	// The EndpointSlice controller copies the labels of a Service to its slices, so one selector serves both.
	byLabel := metav1.ListOptions{LabelSelector: labels.NewSelector().Add(*delegated).String()}
	byNode := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", o.Node).String()}
	return []*kind{
		serviceKind(c, byLabel), sliceKind(c, byLabel), podKind(c, byNode), nodeKind(c, labelKeys(o.AgentNodes)), shardKind(c),
	}, nil
}

func serviceKind(c *clients, selector metav1.ListOptions) *kind {
	api := c.core.Services(metav1.NamespaceAll)
	return &kind{
		name: services, expected: &corev1.Service{}, selector: selector,
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
		strip: stripper(stripService),
		put: func(batch nat.Objects, key nat.Key, o metav1.Object) {
			batch.Services[key], _ = o.(*corev1.Service)
		},
		observe: func(o metav1.Object) status.Observed { return status.Observe(o.(*corev1.Service)) },
	}
}

func sliceKind(c *clients, selector metav1.ListOptions) *kind {
	api := c.discovery.EndpointSlices(metav1.NamespaceAll)
	return &kind{
		name: endpointSlices, expected: &discoveryv1.EndpointSlice{}, selector: selector,
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
		strip: stripper(stripSlice),
		put: func(batch nat.Objects, key nat.Key, o metav1.Object) {
			batch.Slices[key], _ = o.(*discoveryv1.EndpointSlice)
		},
	}
}

func podKind(c *clients, selector metav1.ListOptions) *kind {
	api := c.core.Pods(metav1.NamespaceAll)
	return &kind{
		name: pods, expected: &corev1.Pod{}, selector: selector,
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
		strip: stripper(stripPod),
		put: func(batch nat.Objects, key nat.Key, o metav1.Object) {
			batch.Pods[key], _ = o.(*corev1.Pod)
		},
		same: samePod,
	}
}

func nodeKind(c *clients, labels []string) *kind {
	api := c.core.Nodes()
	return &kind{
		name: nodes, expected: &corev1.Node{},
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
		strip: stripper(func(o *corev1.Node) *corev1.Node { return stripNode(o, labels...) }),
		put: func(batch nat.Objects, key nat.Key, o metav1.Object) {
			batch.Nodes[key.Name], _ = o.(*corev1.Node)
		},
		same: sameNode,
	}
}

// labelKeys are the labels that a selector looks at.
func labelKeys(s labels.Selector) []string {
	if s == nil {
		return nil
	}
	var keys []string
	requirements, _ := s.Requirements()
	for _, r := range requirements {
		keys = append(keys, r.Key())
	}
	return keys
}

func shardKind(c *clients) *kind {
	api := c.dynamic.Resource(shardResource())
	return &kind{
		name: shards, expected: &unstructured.Unstructured{},
		list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		watch: api.Watch,
		strip: stripShard,
		put: func(batch nat.Objects, key nat.Key, o metav1.Object) {
			batch.Shards[key] = shardOf(o)
		},
		optional: c.servesShards,
	}
}

// listWatch returns what a Reflector asks with; answered is called after every request that was answered as it should be.
func (k *kind) listWatch(answered func()) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := k.list(ctx, k.narrow(o))
			if err == nil {
				answered()
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := k.watch(ctx, k.narrow(o))
			if err == nil {
				answered()
			}
			return w, err
		},
	}
}

func (k *kind) narrow(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector, o.FieldSelector = k.selector.LabelSelector, k.selector.FieldSelector
	return o
}
