// SPDX-License-Identifier: Apache-2.0

// Package node tells what this node is like: its addresses, its uplinks, the
// interfaces behind which local backends are routed, and what about it would
// keep translation from working. It follows all of that as it changes.
//
// It only reads, but for the routing rules of tenants that it is told to keep.
// No address, route or sysctl is ever changed, and nothing is decided about
// Services: what the facts mean is up to package nat.
//
//	n, err := node.Open(node.Options{NetNS: fd})
//	go n.Run(ctx, func() { loop.Kick() })
//	facts := n.Facts()
//	interfaces, err := n.TrackBackends(added, removed)
package node
