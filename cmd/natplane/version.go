// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/pflag"
)

// stamped is set by the linker for release images: -ldflags "-X main.stamped=v1.2.3".
var stamped string

func runVersion(_ context.Context, args []string, stdio stdio) error {
	if err := parse(pflag.NewFlagSet("version", pflag.ContinueOnError), args, stdio); err != nil {
		return err
	}
	_, err := fmt.Fprintln(stdio.out, version())
	return err
}

// version is the stamped version, or what the Go toolchain recorded about the checkout.
func version() string {
	v, revision := stamped, ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if v == "" {
			v = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				revision = " " + s.Value[:12]
			}
		}
	}
	if v == "" {
		v = "(devel)"
	}
	return fmt.Sprintf("natplane %s%s %s %s/%s", v, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
