// SPDX-License-Identifier: Apache-2.0

// Package kube starts a real API server for a test and writes objects as the parts of a cluster do that are not there: the kubelet (Pods
// and their status, Nodes), the load-balancer controller (addresses of Services), the administrator (accounts, roles, CRDs). EndpointSlices
// come from the real controller.
//
// The server is the binary of testenv/apiserver, which is built when it is not cached; that takes minutes the first time. Tests that
// use it carry the build tag "cluster".
//
//	cluster := kube.Start(t)
//	cluster.Node(t, "node-a", "198.51.100.1")
//	cluster.Pod(t, "tenant-a", "vm-1", "node-a", map[string]string{"app": "vm-1"}, "10.244.1.10")
//	cluster.Service(t, "tenant-a", "vm-1", "cozy-proxy")
//	cluster.Assign(t, "tenant-a", "vm-1", "203.0.113.10")
package kube
