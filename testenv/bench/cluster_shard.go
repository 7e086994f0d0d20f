// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/natplane/natplane/nat"
)

// shardPoll is the distance of the looks at the status of a shard, before anything is timed.
const shardPoll = 5 * time.Millisecond

// prepareShards makes the definition and the namespace of shards.
func (b *clusterBench) prepareShards(ctx context.Context) error {
	text, err := os.ReadFile("deploy/crd/egressshard.yaml")
	if err != nil {
		return fmt.Errorf("from the root of the repository: %w", err)
	}
	definition := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &definition.Object); err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(b.server.config)
	if err != nil {
		return err
	}
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(definitions).Create(ctx, definition, metav1.CreateOptions{}); err != nil {
		return err
	}
	namespace := shardKey().Namespace
	shards := schema.GroupVersionResource{Group: "network.datumapis.com", Version: "v1alpha1", Resource: "egressshards"}
	b.shards = client.Resource(shards).Namespace(namespace)
	_, err = b.server.core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	return err
}

// addShards times how long a shard takes from its address to the first packet that leaves with it. Each is a new object, because an address
// is written once, and goes when it has been timed.
func (b *clusterBench) addShards(ctx context.Context, t *table, services, changes int) error {
	var writes, took []float64
	for i := range changes {
		write, total, err := b.claim(ctx, fmt.Sprintf("bench-%d", i))
		if err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		writes, took = append(writes, milliseconds(write)), append(took, milliseconds(total))
	}
	t.add(strconv.Itoa(services), quartiles(writes).String(), quartiles(took).String(), short(percentile(took, 0.99)), short(percentile(took, 1)))
	return nil
}

func (b *clusterBench) claim(ctx context.Context, name string) (write, total time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, agentTakes)
	defer cancel()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(benchShard(""))
	if err != nil {
		return 0, 0, err
	}
	shard := &unstructured.Unstructured{Object: content}
	shard.SetName(name)
	shard.SetUID("")
	// The kind may not be served yet.
	err = retried(ctx, func() error {
		_, err := b.shards.Create(ctx, shard, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, b.shards.Delete(ctx, name, metav1.DeleteOptions{})) }()
	if err := retried(ctx, func() error { return b.unassigned(ctx, name) }); err != nil {
		return 0, 0, err
	}
	return firstOfShard(ctx, b.topo.DB, b.topo.Ext, func() error {
		text := fmt.Appendf(nil, `{"spec":{"shardAddressIPv4":%q,"nat64Prefix":"64:ff9b::/96"}}`, shardAddress())
		_, err := b.shards.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
		return err
	})
}

// unassigned returns nil when the agent has said of a shard that it waits for its address.
func (b *clusterBench) unassigned(ctx context.Context, name string) error {
	object, err := b.shards.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	shard := &nat.EgressShard{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, shard); err != nil {
		return err
	}
	for _, c := range shard.Status.Conditions {
		if c.Reason == string(nat.ReasonAddressUnassigned) {
			return nil
		}
	}
	return fmt.Errorf("shard %s: the agent has not seen it: %+v", name, shard.Status)
}

// retried repeats f until it succeeds.
func retried(ctx context.Context, f func() error) error {
	tick := time.NewTicker(shardPoll)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-tick.C:
		}
	}
}
