// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/natplane/natplane/agent"
)

// defaultHTTP is loopback: state and metrics name tenants' addresses.
const defaultHTTP = "127.0.0.1:9410"

// gcPercent is by how much the heap may grow before garbage is collected. Nearly all of it lives as long as the agent does, and a change
// leaves little garbage: Go's 100 would double the resident memory of a node with thousands of machines to save it a collection now and
// then. GOGC in the environment wins.
const gcPercent = 40

type agentFlags struct {
	policy     policyFlags
	manifests  string
	kubeconfig string
	http       string
	logFormat  string
	logLevel   string
	takeOver   bool
	unowned    bool
	trust      bool
}

func (f *agentFlags) register(fs *pflag.FlagSet) {
	f.policy.register(fs)
	fs.StringVar(&f.manifests, "manifests", "", "read objects from the YAML files of this directory and follow their changes")
	fs.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the API server (default in-cluster)")
	fs.StringVar(&f.http, "http-address", defaultHTTP, "where /healthz, /readyz, /metrics and /debug/state are served")
	fs.BoolVar(&f.trust, "trust-slices", false,
		"under externalTrafficPolicy Cluster, believe EndpointSlices about machines of other nodes instead of the agents there; always so with --manifests")
	fs.BoolVar(&f.takeOver, "take-over", true, "replace the table of cozy-proxy where there is one; open connections go on")
	fs.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fs.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fs.BoolVar(&f.unowned, "unowned", false, "do not own the table, as on kernels before 6.9 (for tests)")
	_ = fs.MarkHidden("unowned") // fails only for a flag that does not exist
}

func runAgent(ctx context.Context, args []string, stdio stdio) error {
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	var flags agentFlags
	flags.register(fs)
	if err := parse(fs, args, stdio); err != nil {
		return err
	}
	if flags.manifests != "" && flags.kubeconfig != "" {
		return usagef("--manifests and --kubeconfig exclude each other")
	}
	if flags.http != "" {
		if err := checkAddress(flags.http); err != nil {
			return err
		}
	}
	policy, err := flags.policy.config()
	if err != nil {
		return err
	}
	log, err := newLogger(stdio.err, flags.logFormat, flags.logLevel)
	if err != nil {
		return err
	}
	started := func() {}
	if os.Getenv("GOGC") == "" {
		started = agent.RelaxGC(gcPercent)
	}
	objects, err := flags.open(&policy, log)
	if err != nil {
		return err
	}
	listener, err := listen(ctx, flags.http)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Options{
		Policy:   policy,
		Uplinks:  flags.policy.uplinks,
		Source:   objects.source,
		Reporter: objects.reporter,
		HTTP:     listener,
		Log:      log,

		Programmed:       started,
		LeavePredecessor: !flags.takeOver,
		Unowned:          flags.unowned,
	})
	if err != nil {
		return err
	}
	return a.Run(ctx)
}

func newLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("--log-level %q: want debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: l}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(w, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, options)), nil
	}
	return nil, usagef("--log-format %q: want text or json", format)
}
