// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/natplane/natplane/nft"
)

// scrapeTimeout bounds what a scrape asks of the kernel; Prometheus waits 10 s unless told otherwise.
const scrapeTimeout = 5 * time.Second

// passMetrics are counted by the loop.
type passMetrics struct {
	duration prometheus.Histogram
	elements *prometheus.CounterVec
	failures prometheus.Counter
	replaced prometheus.Counter
}

func newPassMetrics() *passMetrics {
	return &passMetrics{
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "natplane_pass_duration_seconds",
			Help:    "Time from taking changed objects to the committed transaction.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		elements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "natplane_elements_written_total", Help: "Set and map elements written to the table.",
		}, []string{"change"}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "natplane_programming_failures_total", Help: "Attempts to program the table that failed, also those that a second one in the same pass made good.",
		}),
		replaced: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "natplane_table_replaced_total", Help: "Times the whole table was replaced in one transaction.",
		}),
	}
}

func (m *passMetrics) observe(took time.Duration, r nft.Result, err error) {
	if err != nil {
		m.failures.Inc()
		return
	}
	m.duration.Observe(took.Seconds())
	m.elements.WithLabelValues("added").Add(float64(r.Added))
	m.elements.WithLabelValues("removed").Add(float64(r.Removed))
	if r.Replaced {
		m.replaced.Inc()
	}
}

func (m *passMetrics) register(r *prometheus.Registry) {
	r.MustRegister(m.duration, m.elements, m.failures, m.replaced)
}

// registry holds the agent's metrics: what the loop counts, and what is asked of the kernel at the time of a scrape.
func (a *Agent) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	a.loop.passes.register(r)
	r.MustRegister(&kernelCollector{agent: a})
	return r
}

// kernelCollector reads counters that others keep.
type kernelCollector struct{ agent *Agent }

var _ prometheus.Collector = (*kernelCollector)(nil)

// Describe leaves the collector unchecked: the guards' rules are known by their comments.
func (*kernelCollector) Describe(chan<- *prometheus.Desc) {}

// Collect asks table and auditor.
func (c *kernelCollector) Collect(out chan<- prometheus.Metric) {
	c.collectHealth(out)
	c.collectAudit(out)
	c.collectShard(out)
	counters, err := c.agent.drops()
	if err != nil {
		return // the scrape goes on without them; programming reports a table that cannot be read
	}
	packets := prometheus.NewDesc("natplane_rule_packets_total", "Packets that a rule with a counter dropped.", []string{"chain", "reason"}, nil)
	for _, k := range counters {
		out <- prometheus.MustNewConstMetric(packets, prometheus.CounterValue, float64(k.Packets), k.Chain, k.Comment)
	}
}

func (c *kernelCollector) collectHealth(out chan<- prometheus.Metric) {
	h := c.agent.Health()
	gauge := func(name, help string, v float64) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
	}
	gauge("natplane_ready", "1 while every kind of object was read and the table holds what they ask for.", oneIf(h.Ready))
	gauge("natplane_drift_repairs", "Changes by others that were noticed in the table.", float64(h.Drift))
	gauge("natplane_source_problems", "Objects or files of the source that are not in force as written.", float64(len(c.agent.options.Source.Problems())))
	if warnings, err := c.agent.node.Warnings(); err == nil {
		gauge("natplane_node_warnings", "Settings of the node that translation will suffer from.", float64(len(warnings)))
	}
}

func (c *kernelCollector) collectAudit(out chan<- prometheus.Metric) {
	s := c.agent.auditor.Stats()
	counter := func(name, help string, v int) {
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, float64(v))
	}
	counter("natplane_audit_passes_total", "Flow audits, the failed ones included.", s.Passes)
	counter("natplane_audit_failed_passes_total", "Flow audits that failed and were tried again.", s.FailedPasses)
	counter("natplane_audit_flows_examined_total", "Flows that audits looked at.", s.Examined)
	counter("natplane_audit_flows_deleted_total", "Flows that the rules no longer made.", s.Deleted)
	counter("natplane_audit_delete_errors_total", "Flows that could not be deleted.", s.DeleteErrors)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
