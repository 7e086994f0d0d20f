// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/agent/cluster"
	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// objects are where the agent reads, and where it says what became of what it read; without a cluster there is nobody to tell.
type objects struct {
	source   agent.Source
	reporter agent.Reporter
}

// open is the manifest directory or, without one, the API server, whose addresses the policy has to leave alone.
func (f *agentFlags) open(policy *nat.Config, log *slog.Logger) (objects, error) {
	if f.manifests != "" {
		source, err := manifests.Open(f.manifests, log)
		if err != nil {
			return objects{}, err
		}
		return objects{source: manifestSource{source}}, nil
	}
	klog.SetSlogLogger(log) // what client-go has to say looks like our own lines
	config, err := restConfig(f.kubeconfig)
	if err != nil {
		return objects{}, err
	}
	source, err := cluster.Open(cluster.Options{
		Config: config, Node: policy.Node, ProxyNames: policy.ProxyNames, AgentNodes: policy.AgentNodes, Log: log,
	})
	if err != nil {
		return objects{}, err
	}
	policy.VouchedOnly = !f.trust
	policy.Reserved = cluster.ServerAddresses(config)
	services := status.Options{Client: source.Client(), Services: source, Node: policy.Node, Log: log}
	reporter := status.Together{
		Services: status.New(services),
		Vouches:  status.NewVoucher(services),
		Shards:   status.NewShardReporter(status.ShardOptions{Client: source.ShardClient(), Events: source.Client(), Shards: source, Node: policy.Node, Log: log}),
	}
	source.OnObserved(reporter.Observe)
	source.OnShardObserved(reporter.Shards.Observe)
	return objects{source, reporter}, nil
}

func restConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, usagef("give --manifests or --kubeconfig: this is not a Pod of a cluster, KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set")
	}
	if err != nil {
		return nil, fmt.Errorf("account of the Pod (automountServiceAccountToken): %w", err)
	}
	return config, nil
}

// manifestSource shows the problems of manifests as the loop wants them.
type manifestSource struct{ *manifests.Source }

// Problems lists one line each.
func (s manifestSource) Problems() []string {
	texts := []string{}
	for _, p := range s.Source.Problems() {
		texts = append(texts, p.String())
	}
	return texts
}
