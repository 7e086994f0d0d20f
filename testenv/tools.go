// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// RequireRoot skips the test with a reason when it may not make namespaces.
// With CI=true it fails instead, so that a pipeline cannot pass untested.
func RequireRoot(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		skipOrFail(tb, "needs root to make network namespaces")
	}
}

// RequireTool does the same for a program that must be in PATH.
func RequireTool(tb testing.TB, name string) {
	tb.Helper()
	if _, err := exec.LookPath(name); err != nil {
		skipOrFail(tb, "needs the program "+name+": "+err.Error())
	}
}

func skipOrFail(tb testing.TB, reason string) {
	tb.Helper()
	if os.Getenv("CI") == "true" {
		tb.Fatal(reason)
	}
	tb.Skip(reason)
}
