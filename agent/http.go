// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
)

// shutdownGrace is how long open requests may still take when the agent stops.
const shutdownGrace = 2 * time.Second

// Report is the answer of /debug/state and of `natplane status -o json`: the plan in force with the number of flows, and how the agent is.
type Report struct {
	Node         string              `json:"node"`
	Health       Health              `json:"health"`
	Translations []TranslationReport `json:"translations"`
	Verdicts     []nat.Verdict       `json:"verdicts"`
	// Drops are the guards' counters.
	Drops []nft.Counter `json:"drops"`
	// Shards has an entry for each address of the shard that this node serves.
	Shards    []ShardReport   `json:"shards"`
	Conntrack ConntrackReport `json:"conntrack"`
	Audit     AuditReport     `json:"audit"`
	Warnings  []node.Warning  `json:"warnings"`
	Problems  []string        `json:"problems"`
}

// AuditReport says what the flow audit did since the agent started.
type AuditReport struct {
	Passes        int    `json:"passes"`
	FailedPasses  int    `json:"failedPasses"`
	FlowsDeleted  int    `json:"flowsDeleted"`
	FlowsExamined int    `json:"flowsExamined"`
	DeleteErrors  int    `json:"deleteErrors"`
	Pending       int    `json:"pending"`
	LastError     string `json:"lastError,omitempty"`
}

func auditReport(s conntrack.Stats) AuditReport {
	r := AuditReport{
		Passes: s.Passes, FailedPasses: s.FailedPasses, FlowsDeleted: s.Deleted, FlowsExamined: s.Examined,
		DeleteErrors: s.DeleteErrors, Pending: s.Pending,
	}
	if s.LastError != nil {
		r.LastError = s.LastError.Error()
	}
	return r
}

// TranslationReport is a translation with the number of its flows.
type TranslationReport struct {
	nat.Translation
	Flows int `json:"flows"`
}

func (a *Agent) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		h := a.Health()
		answer(w, h.Healthy, "no change could be applied for "+stuckAfter.String()+": "+h.LastError)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		h := a.Health()
		answer(w, h.Ready, h.explain())
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry(), promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /debug/state", func(w http.ResponseWriter, r *http.Request) {
		report, err := a.Report(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		// An error here is the client's connection: there is nobody left to tell.
		_ = enc.Encode(report)
	})
	return mux
}

func answer(w http.ResponseWriter, ok bool, why string) {
	if !ok {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// Report collects the state of a running agent.
func (a *Agent) Report(ctx context.Context) (Report, error) {
	plan, err := a.Plan(ctx)
	if err != nil {
		return Report{}, fmt.Errorf("the agent is busy: %w", err)
	}
	var pairs []conntrack.Pair
	for _, t := range plan.Translations {
		pairs = append(pairs, pairOf(t))
	}
	flows, flowErr := conntrack.Count(ctx, a.flows, pairs)
	drops, dropErr := a.drops()
	shards, shardErr := a.shardReports(ctx)
	tracking, trackErr := a.conntrackReport(ctx)
	warnings, warnErr := a.node.Warnings()
	r := Report{
		Node:         plan.Node,
		Health:       a.Health(),
		Translations: []TranslationReport{},
		Verdicts:     plan.Verdicts,
		Drops:        drops,
		Shards:       shards,
		Conntrack:    tracking,
		Audit:        auditReport(a.auditor.Stats()),
		Warnings:     append([]node.Warning{}, warnings...),
		Problems:     a.options.Source.Problems(),
	}
	for _, t := range plan.Translations {
		r.Translations = append(r.Translations, TranslationReport{Translation: t, Flows: flows[pairOf(t)]})
	}
	if r.Health.NodeMissing != "" {
		r.Problems = append(r.Problems, r.Health.NodeMissing)
	}
	if r.Health.Predecessor {
		r.Problems = append(r.Problems, predecessorConflict)
	}
	for _, err := range []error{flowErr, dropErr, warnErr, shardErr, trackErr} {
		if err != nil {
			r.Problems = append(r.Problems, err.Error())
		}
	}
	return r, nil
}

// pairOf tells the flows of a translation from those of others: port lists of several machines may share an address.
func pairOf(t nat.Translation) conntrack.Pair {
	return conntrack.Pair{Public: t.Public, Inside: t.Backend}
}

// drops are the counters of both tables.
func (a *Agent) drops() ([]nft.Counter, error) {
	drops, err := a.table.Counters()
	if err != nil {
		return drops, err
	}
	more, err := a.tenants.Counters()
	return append(drops, more...), err
}

// serve answers on the listener until ctx ends.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return fmt.Errorf("http on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	err := server.Shutdown(grace)
	if errors.Is(err, context.DeadlineExceeded) {
		err = server.Close()
	}
	return err
}
