// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// Start starts a command inside the namespace. A child belongs to the
// namespace of the thread that starts it, so cmd.Start alone would be wrong.
func (ns *NetNS) Start(cmd *exec.Cmd) error { return ns.Do(cmd.Start) }

// Run runs a program inside the namespace and returns what it printed, on both
// outputs. The error of a failed program holds that text too.
func (ns *NetNS) Run(ctx context.Context, name string, args ...string) (string, error) {
	var out strings.Builder
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return out.String(), fmt.Errorf("%s in namespace %s: %w: %s",
			strings.Join(cmd.Args, " "), ns.name, err, strings.TrimSpace(out.String()))
	}
	return out.String(), nil
}

// Nft runs nft inside the namespace for a test and returns its output.
func (ns *NetNS) Nft(tb testing.TB, args ...string) string {
	tb.Helper()
	RequireTool(tb, "nft")
	out, err := ns.Run(tb.Context(), "nft", args...)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// NftScript loads a ruleset given as text, as `nft -f -` does.
func (ns *NetNS) NftScript(tb testing.TB, script string) {
	tb.Helper()
	RequireTool(tb, "nft")
	var out strings.Builder
	cmd := exec.CommandContext(tb.Context(), "nft", "-f", "-")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(script), &out, &out
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		tb.Fatalf("nft script in namespace %s: %v: %s", ns.name, err, out.String())
	}
}
