// SPDX-License-Identifier: Apache-2.0

// Package nat is the policy of natplane: which public address this node translates to which backend, which address a backend's own
// connections leave with, who may connect, and what is wrong with an object that is not served. It is pure: objects in, a State for the
// kernel and one Verdict per Service out; no I/O, no clock, no kernel, no Kubernetes client.
//
// An Engine keeps the facts that it drew from the objects, so that a changed object costs what depends on it and not the number of
// Services:
//
//	engine := nat.NewEngine(config, nil)
//	outcome := engine.Apply(batch, facts)   // outcome.Delta goes to the kernel, outcome.Verdicts to the status
//
// The result depends on the set of objects alone, never on the order in which they came; the one exception is a backend that is
// ambiguous (R4), where what is programmed already stays.
package nat
