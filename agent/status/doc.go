// SPDX-License-Identifier: Apache-2.0

// Package status tells the authors of Services what became of them: two conditions on the Service, and an Event when the reason of one
// changes (R20).
//
// Every node comes to the same verdict about who reports, and only that node writes: with server-side apply on the status subresource, under
// one field manager for all nodes, so that the next reporter may overwrite and remove what the last one wrote, and nobody else's fields are
// touched. A Service that already says what it should is left alone; a restart therefore writes nothing. Everything waits in a rate-limited
// queue with one place per Service, so Report never blocks.
//
// A Voucher writes one more condition, for each node that has a Pod of a Service under externalTrafficPolicy Cluster: on it other nodes depend.
//
// A ShardReporter does the same for EgressShards, whose status also names the addresses that the kernel is programmed with, with
// Events of their own: it never says more than the kernel does, because others place tenants by it.
//
// It judges nothing (package nat does), lists and watches nothing (package cluster does).
//
//	reporter := status.New(status.Options{Client: source.Client(), Services: source, Node: node, Log: log})
//	source.OnObserved(reporter.Observe)
//	go reporter.Run(ctx)
package status
