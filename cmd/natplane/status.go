// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
)

// statusTimeout covers counting the flows of a node with millions of them.
const statusTimeout = 30 * time.Second

func runStatus(ctx context.Context, args []string, stdio stdio) error {
	fs := pflag.NewFlagSet("status", pflag.ContinueOnError)
	address := fs.String("http-address", defaultHTTP, "where the agent serves its state")
	output := outputFlag(fs)
	if err := parse(fs, args, stdio); err != nil {
		return err
	}
	if err := checkOutput(*output); err != nil {
		return err
	}
	if err := checkAddress(*address); err != nil {
		return err
	}
	report, err := fetchReport(ctx, *address)
	if err != nil {
		return err
	}
	if *output == "json" {
		return writeJSON(stdio.out, report)
	}
	return printReport(stdio.out, report)
}

func fetchReport(ctx context.Context, address string) (agent.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/debug/state", nil)
	if err != nil {
		return agent.Report{}, usagef("--http-address %q: %v", address, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return agent.Report{}, fmt.Errorf("no agent answers on %s (is it running, with the same --http-address?): %w", address, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1024)) // what could be read is shown
		return agent.Report{}, fmt.Errorf("the agent on %s answers %s: %s", address, resp.Status, strings.TrimSpace(string(text)))
	}
	var report agent.Report
	if err := json.NewDecoder(resp.Body).Decode(&report); err != nil {
		return agent.Report{}, fmt.Errorf("the answer of %s: %w", address, err)
	}
	return report, nil
}

func printReport(w io.Writer, r agent.Report) error {
	fmt.Fprintf(w, "node %s, ready: %s, drift: %d\n", r.Node, yes(r.Health.Ready), r.Health.Drift)
	if r.Health.Waiting != "" {
		fmt.Fprintln(w, "waiting:", r.Health.Waiting)
	}
	if r.Health.LastError != "" {
		fmt.Fprintln(w, "error:", r.Health.LastError)
	}
	for _, warning := range r.Warnings {
		fmt.Fprintln(w, "warning:", warning.Message)
	}
	for _, p := range r.Problems {
		fmt.Fprintln(w, "problem:", p)
	}
	fmt.Fprintln(w)
	var translations []nat.Translation
	flows := []int{}
	for _, t := range r.Translations {
		translations = append(translations, t.Translation)
		flows = append(flows, t.Flows)
	}
	if err := printTables(w, translations, flows, r.Verdicts); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, s := range r.Shards {
		fmt.Fprintf(w, "shard %s (%s): %d flows, %d ports", s.Address, s.Owner, s.Flows, s.Ports)
		if s.Busiest != "" {
			fmt.Fprintf(w, ", busiest peer %s with %d of %d", s.Busiest, s.BusiestPorts, s.PortsPerPeer)
		}
		fmt.Fprintln(w)
	}
	if c := r.Conntrack; c.Limit > 0 {
		fmt.Fprintf(w, "connection tracking: %d of %d flows, %d refused for want of a port, %d packets dropped\n",
			c.Entries, c.Limit, c.InsertFailed, c.Dropped)
	}
	for _, d := range r.Drops {
		if d.Packets > 0 {
			fmt.Fprintf(w, "dropped %d: %s (%s)\n", d.Packets, d.Comment, d.Chain)
		}
	}
	return nil
}
