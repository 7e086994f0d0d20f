// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
)

// ephemeralPorts is what the kernel chooses from where no range is given: a source port above 1023 stays there
// (nf_nat_l4proto_unique_tuple in net/netfilter/nf_nat_core.c).
const ephemeralPorts = 65536 - 1024

// ShardReport says how much of a shard address is in use.
type ShardReport struct {
	Owner   string     `json:"owner"`
	Address netip.Addr `json:"address"`
	Flows   int        `json:"flows"`
	// Ports is the number of different ports in use, each protocol counted apart.
	Ports int `json:"ports"`
	// PortsPerPeer is how many flows of one protocol may go to one port of one peer at a time; Busiest is the peer nearest to that.
	PortsPerPeer int    `json:"portsPerPeer"`
	Busiest      string `json:"busiest,omitempty"`
	BusiestPorts int    `json:"busiestPorts"`
}

// ConntrackReport is what the kernel counted in this network namespace since it began; see conntrack.KernelStats.
type ConntrackReport struct {
	Entries      uint64 `json:"entries"`
	Limit        uint64 `json:"limit"`
	InsertFailed uint64 `json:"insertFailed"`
	Dropped      uint64 `json:"dropped"`
	EarlyDropped uint64 `json:"earlyDropped"`
}

// shardReports looks at the flows of the addresses of the shard that is programmed; none without a shard.
func (a *Agent) shardReports(ctx context.Context) ([]ShardReport, error) {
	reports := []ShardReport{}
	shard := a.loop.shard.Load()
	if shard == nil {
		return reports, nil
	}
	for _, addr := range []netip.Addr{shard.IPv4, shard.IPv6} {
		if !addr.IsValid() {
			continue
		}
		use, err := conntrack.Use(ctx, a.flows, addr)
		if err != nil {
			return reports, err
		}
		r := ShardReport{
			Owner: shard.Owner.String(), Address: addr, Flows: use.Flows, Ports: use.Ports,
			PortsPerPeer: portsPerPeer(a.options.Policy.ShardPorts), BusiestPorts: use.BusiestPorts,
		}
		if use.Busiest.IsValid() {
			r.Busiest = use.Busiest.String() + " " + protocolName(use.BusiestProto)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

func portsPerPeer(r nat.PortRange) int {
	if r.IsZero() {
		return ephemeralPorts
	}
	return r.Count()
}

func protocolName(p nat.Protocol) string {
	switch p {
	case 1, 58: // ICMP, ICMPv6
		return "echo"
	case nat.TCP, nat.UDP, nat.SCTP:
		return p.String()
	}
	return "protocol without ports"
}

func (a *Agent) conntrackReport(ctx context.Context) (ConntrackReport, error) {
	s, err := a.kernel.KernelStats(ctx)
	return ConntrackReport(s), err
}

// collectShard is asked of the kernel at a scrape: nothing is counted while nobody looks.
func (c *kernelCollector) collectShard(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	if s, err := c.agent.conntrackReport(ctx); err == nil {
		for _, m := range []struct {
			name, help string
			kind       prometheus.ValueType
			value      uint64
		}{
			{"natplane_conntrack_entries", "Flows in the connection-tracking table.", prometheus.GaugeValue, s.Entries},
			{"natplane_conntrack_limit", "The most flows that the table may hold.", prometheus.GaugeValue, s.Limit},
			{"natplane_conntrack_insert_failed_total", "First packets dropped because no port was left, or the protocol has none.",
				prometheus.CounterValue, s.InsertFailed},
			{"natplane_conntrack_dropped_total", "Packets that connection tracking dropped, for a full table too.", prometheus.CounterValue, s.Dropped},
			{"natplane_conntrack_early_dropped_total", "Flows that gave way to new ones in a full table.", prometheus.CounterValue, s.EarlyDropped},
		} {
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(m.name, m.help, nil, nil), m.kind, float64(m.value))
		}
	}
	reports, err := c.agent.shardReports(ctx)
	if err != nil {
		return // the scrape goes on without them
	}
	for _, r := range reports {
		for _, m := range []struct {
			name, help string
			value      int
		}{
			{"natplane_shard_flows", "Flows that leave with a shard address.", r.Flows},
			{"natplane_shard_ports_used", "Different ports of a shard address in use, each protocol counted apart.", r.Ports},
			{"natplane_shard_busiest_peer_ports", "Ports in use towards the peer that has the most of them.", r.BusiestPorts},
			{"natplane_shard_ports_per_peer", "Ports that there are for flows of one protocol to one port of one peer.", r.PortsPerPeer},
		} {
			desc := prometheus.NewDesc(m.name, m.help, []string{"address"}, nil)
			out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(m.value), r.Address.String())
		}
	}
}
