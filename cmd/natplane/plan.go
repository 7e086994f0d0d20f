// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
)

// runPlan needs no privileges and looks at nothing but the manifests: it answers what a node would do, on any machine.
func runPlan(_ context.Context, args []string, stdio stdio) error {
	fs := pflag.NewFlagSet("plan", pflag.ContinueOnError)
	var policy policyFlags
	policy.register(fs)
	paths := fs.StringArrayP("filename", "f", nil, "file or directory of manifests, - for the standard input (required)")
	trust := fs.Bool("trust-slices", true, "under externalTrafficPolicy Cluster, believe EndpointSlices about machines of other nodes, "+
		"as an agent with --manifests; false: only what the agents there vouch for, as an agent of a cluster")
	output := outputFlag(fs)
	if err := parse(fs, args, stdio); err != nil {
		return err
	}
	if len(*paths) != 1 || (*paths)[0] == "" {
		return usagef("-f has to name one file or directory of manifests")
	}
	path := (*paths)[0]
	if err := checkOutput(*output); err != nil {
		return err
	}
	config, err := policy.config()
	if err != nil {
		return err
	}
	config.VouchedOnly = !*trust
	objects, problems, err := readManifests(path, stdio.in)
	if err != nil {
		return err
	}
	engine := nat.NewEngine(config, nil)
	engine.Apply(objects, nat.Facts{Uplinks: policy.uplinks})
	if err := printPlan(stdio.out, engine.Plan(), *output); err != nil {
		return err
	}
	if missing := engine.NodeMissing(); missing != "" {
		fmt.Fprintln(stdio.err, "natplane plan:", missing)
	}
	for _, p := range problems {
		fmt.Fprintln(stdio.err, p)
	}
	if len(problems) > 0 {
		return fmt.Errorf("%d problems in %s; the plan is that of the rest", len(problems), path)
	}
	return nil
}

func readManifests(path string, stdin io.Reader) (nat.Objects, []manifests.Problem, error) {
	if path == manifests.Stdin {
		return manifests.ReadFrom(stdin, "standard input")
	}
	return manifests.Read(path)
}

func printPlan(w io.Writer, p nat.Plan, format string) error {
	if format == "json" {
		return writeJSON(w, p)
	}
	return printTables(w, p.Translations, nil, p.Verdicts)
}

func writeJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}
