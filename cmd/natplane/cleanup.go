// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/natplane/natplane/agent"
)

func runCleanup(ctx context.Context, args []string, stdio stdio) error {
	if err := parse(pflag.NewFlagSet("cleanup", pflag.ContinueOnError), args, stdio); err != nil {
		return err
	}
	removed, err := agent.Cleanup(ctx, 0)
	if err != nil {
		return err
	}
	if !removed.Table {
		fmt.Fprintln(stdio.out, "nothing to remove: there is no table inet natplane")
		return nil
	}
	fmt.Fprintf(stdio.out, "removed table inet natplane and %d flows of %d public addresses\n", removed.Flows, removed.Addresses)
	return nil
}
