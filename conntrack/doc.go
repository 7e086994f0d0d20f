// SPDX-License-Identifier: Apache-2.0

// Package conntrack makes open connections follow the rules: after every
// committed change, each flow that touches an affected address is one that the
// new state would create, and the others are deleted (rule R14).
//
// What is stale is decided by pure functions over values (Index, Flow). The
// Auditor remembers what changed, looks at the flows off the critical path and
// tries again until it has succeeded. Purge and Count serve the removal of
// everything and the status report.
//
// It does not program rules, does not follow conntrack events, creates no flow
// that a packet could meet and deletes nothing by pattern: every deletion names
// one flow by tuple, zone and id, because a deletion without a tuple flushes
// the whole table.
//
// Netlink framing and attributes come from mdlayher/netlink, the only library
// here that streams a dump (ReceiveIter), and the netfilter header from
// ti-mo/netfilter. The tuples are put into attributes here because neither
// ti-mo/conntrack nor vishvananda/netlink sends CTA_FILTER or CTA_ID, streams,
// or reads the zone of one direction.
//
//	table, err := conntrack.Open(0)
//	auditor := conntrack.NewAuditor(table, conntrack.Config{Log: log})
//	go auditor.Run(ctx)
//	auditor.Commit(delta) // after each transaction; returns at once
package conntrack
