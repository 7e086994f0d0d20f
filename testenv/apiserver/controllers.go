// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/kubernetes/pkg/controller/endpointslice"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

const (
	endpointSliceName    = "endpointslice"
	garbageCollectorName = "garbagecollector"
	namespaceName        = "namespace"

	// workers is the number of goroutines of each controller.
	workers = 5
	// discoveryPeriod is how often the garbage collector looks for kinds that
	// a new CustomResourceDefinition brought. In a cluster it is 30 s.
	discoveryPeriod = 5 * time.Second
)

// controllerConfig says which controllers run, and how.
type controllerConfig struct {
	names                []string
	maxEndpointsPerSlice int
}

func controllerNames() []string {
	return []string{endpointSliceName, garbageCollectorName, namespaceName}
}

func (c controllerConfig) validate() error {
	for _, name := range c.names {
		if !slices.Contains(controllerNames(), name) {
			return fmt.Errorf("unknown controller %q", name)
		}
	}
	// The API refuses slices of more than 1000 endpoints.
	if c.maxEndpointsPerSlice < 1 || c.maxEndpointsPerSlice > 1000 {
		return fmt.Errorf("--max-endpoints-per-slice %d: must be 1 to 1000", c.maxEndpointsPerSlice)
	}
	return nil
}

// controllerSet holds what the controllers share.
type controllerSet struct {
	client    *kubernetes.Clientset
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	started   chan struct{} // closed once the informers run
}

// startControllers starts the wanted controllers; they end with ctx.
func startControllers(ctx context.Context, cfg *rest.Config, want controllerConfig) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("controller client: %w", err)
	}
	metadataClient, err := metadata.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("controller metadata client: %w", err)
	}
	set := &controllerSet{
		client:    client,
		metadata:  metadataClient,
		informers: informers.NewSharedInformerFactory(client, 0),
		started:   make(chan struct{}),
	}
	if slices.Contains(want.names, endpointSliceName) {
		set.startEndpointSlice(ctx, want.maxEndpointsPerSlice)
	}
	if slices.Contains(want.names, namespaceName) {
		set.startNamespace(ctx)
	}
	if slices.Contains(want.names, garbageCollectorName) {
		if err := set.startGarbageCollector(ctx); err != nil {
			return err
		}
	}
	set.informers.Start(ctx.Done())
	close(set.started)
	for kind, synced := range set.informers.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("controllers: informer of %v not synced", kind)
		}
	}
	return nil
}

func (s *controllerSet) startEndpointSlice(ctx context.Context, maxEndpoints int) {
	c := endpointslice.NewController(ctx,
		s.informers.Core().V1().Pods(),
		s.informers.Core().V1().Services(),
		s.informers.Core().V1().Nodes(),
		s.informers.Discovery().V1().EndpointSlices(),
		int32(maxEndpoints), s.client, 0)
	go c.Run(ctx, workers)
}

func (s *controllerSet) startNamespace(ctx context.Context) {
	const resync = 5 * time.Minute
	c := namespace.NewNamespaceController(ctx, s.client, s.metadata,
		s.client.Discovery().ServerPreferredNamespacedResources,
		s.informers.Core().V1().Namespaces(), resync, corev1.FinalizerKubernetes)
	go c.Run(ctx, workers)
}

func (s *controllerSet) startGarbageCollector(ctx context.Context) error {
	// The mapper has a cache of its own: the collector resets it at will.
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery()))
	factory := informerfactory.NewInformerFactory(s.informers, metadatainformer.NewSharedInformerFactory(s.metadata, 0))
	c, err := garbagecollector.NewGarbageCollector(ctx, s.client, s.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(), factory, s.started)
	if err != nil {
		return fmt.Errorf("garbage collector: %w", err)
	}
	go c.Run(ctx, workers, discoveryPeriod)
	go c.Sync(ctx, s.client.Discovery(), discoveryPeriod)
	return nil
}
