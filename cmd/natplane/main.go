// SPDX-License-Identifier: Apache-2.0

// Command natplane is the per-node agent that gives virtual machines and pods their public addresses, and the tools around it. It only
// wires: policy is in package nat, the kernel in packages nft, conntrack and node, the loop between them in package agent.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

// Exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// errUsage marks errors that a corrected command line mends.
var errUsage = errors.New("usage")

func usagef(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}

// command is one word after natplane.
type command struct {
	name, arguments, summary string
	run                      func(ctx context.Context, args []string, stdio stdio) error
}

// stdio is where a command reads and writes.
type stdio struct {
	in       io.Reader
	out, err io.Writer
}

func commands() []command {
	return []command{
		{"agent", "--node-name N [--manifests DIR | --kubeconfig F] [flags]", "keep this node's translations as the objects say", runAgent},
		{"plan", "-f FILE|DIR --node-name N [flags]", "print what a node would translate, and the verdict on each object", runPlan},
		{"status", "[--http-address A] [-o table|json]", "print what the running agent translates", runStatus},
		{"cleanup", "", "remove the table and the flows of natplane from this node", runCleanup},
		{"version", "", "print the version", runVersion},
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], stdio{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, io stdio) int {
	if len(args) == 0 {
		usage(io.err)
		return exitUsage
	}
	switch args[0] {
	case "help", "-h", "--help":
		usage(io.out)
		return exitDone
	}
	for _, c := range commands() {
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], io)
		switch {
		case err == nil || errors.Is(err, pflag.ErrHelp):
			return exitDone
		case errors.Is(err, errUsage):
			fmt.Fprintf(io.err, "natplane %s: %v\n", c.name, err)
			return exitUsage
		}
		fmt.Fprintf(io.err, "natplane %s: %v\n", c.name, err)
		return exitFailed
	}
	fmt.Fprintf(io.err, "natplane: unknown command %q\n", args[0])
	usage(io.err)
	return exitUsage
}

func usage(w io.Writer) {
	fmt.Fprintln(w, "natplane gives virtual machines and pods their public addresses with stateful NAT in nftables.\n\nCommands:")
	for _, c := range commands() {
		line := fmt.Sprintf("  natplane %-8s %s", c.name, c.arguments)
		fmt.Fprintf(w, "%s\n%20s%s\n", strings.TrimRight(line, " "), "", c.summary)
	}
	fmt.Fprintln(w, "\nnatplane COMMAND --help lists the flags of a command.")
}
