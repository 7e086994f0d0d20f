// SPDX-License-Identifier: Apache-2.0

// Package agent is the loop of natplane: a source of objects → policy (nat) → the kernel's table (nft) → the flow audit (conntrack) →
// status. One goroutine owns policy and table; everything else kicks it. It decides nothing about translation and knows no netlink.
//
//	a, err := agent.New(agent.Options{Policy: config, Source: source, Log: log})
//	err = a.Run(ctx)   // until ctx ends; translation stays in the kernel
package agent
