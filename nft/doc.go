// SPDX-License-Identifier: Apache-2.0

// Package nft keeps one nftables table, inet natplane, in exactly the state that a nat.State asks for. It is the only
// importer of github.com/google/nftables and the only place that knows chains, rules and sets; README.md draws them.
//
// The chains and rules never change with the objects of a cluster: a changed Service changes elements of sets and maps.
// Sync reads the table and corrects it, Apply writes the difference between two states without reading anything.
//
// The package decides nothing about addresses (package nat does), looks at no other table, touches no conntrack entry, no
// route and no sysctl, and runs no program.
//
//	table, err := nft.Open(nft.Options{})
//	result, err := table.Sync(state)            // at start, and after every error
//	result, err = table.Apply(nat.Delta{...})   // for every change
package nft
