// SPDX-License-Identifier: Apache-2.0

//go:build !cluster

package main

// clusterSections need an API server, which takes minutes to build the first time.
func clusterSections() []section { return nil }
