// SPDX-License-Identifier: Apache-2.0

// Package testenv builds small networks out of network namespaces, sends real
// traffic through them and observes it. Tests, the demo and the benchmarks use
// it; the product itself never does.
//
// It knows nothing about translation: it makes namespaces, links, routes and
// packets, and reports the addresses that both ends of a conversation see. It
// does not check rules, does not run the agent, and sends nothing outside the
// namespaces that it made.
//
//	topo := testenv.NewTopology(t)
//	srv := testenv.ListenTCP(t, topo.Web.NS, netip.MustParseAddrPort("[::]:80"))
//	conn, err := testenv.DialTCP(topo.Ext.NS, netip.AddrPort{}, srv.At(topo.Web.Addr4()), time.Second)
package testenv
