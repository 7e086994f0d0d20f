// SPDX-License-Identifier: Apache-2.0

// Package cluster is a source of Kubernetes objects that follows an API server: Services and EndpointSlices of our proxy names, selected
// by the server; the Pods of this node; Nodes; EgressShards. It lists nothing else.
//
// It keeps no copy of the objects. A client-go Reflector (the part of an informer that lists, watches and resumes) writes straight into an
// inbox of whole objects, from which the loop takes what changed; policy keeps what it needs of them. So there is one cache and not three,
// and a delete that the watch missed is found by name: the next list lacks it. Nothing is concluded from an object's last known content.
//
// An API server that is away changes nothing about what was delivered. While it is away one request per second asks for it, whatever the
// number of kinds; when it answers, all kinds go on at once from where they were.
//
// The CRD of EgressShards may be absent. That is a state that Problems tells; it counts as read, and ends by itself a few seconds after the
// CRD appears. Shards are gone with their CRD only when the server says twice, some seconds apart, that it does not know the kind.
//
// What the objects mean is decided in package nat; what is written back, in package status.
//
//	source, err := cluster.Open(cluster.Options{Config: config, Node: node, ProxyNames: names, Log: log})
//	go source.Run(ctx)
//	for range source.Changed() {
//		batch, complete := source.Take()
//		...
//	}
package cluster
