// SPDX-License-Identifier: Apache-2.0

// Package container runs an image as a DaemonSet's Pod would be run, in a network namespace that plays the node. The security context comes
// from the manifest and from nowhere else: user, capabilities, no_new_privs, read-only root, seccomp profile, environment and arguments. A
// field of the manifest that is not understood here is an error, so that none goes untested.
//
// There are two launchers. Crun is an OCI runtime, as a node has one. Bare does with a few system calls what it can without a runtime:
// everything but the seccomp profile; it works wherever network namespaces can be made. Neither limits memory or processor time.
package container
