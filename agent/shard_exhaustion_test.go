// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// TestShardOutOfPorts: with ten ports, the eleventh connection to a peer fails, silently to the machine and visibly to the operator. The ten
// go on, other peers are reached, and nothing leaves with a private source. An ended connection makes room.
func TestShardOutOfPorts(t *testing.T) {
	t.Parallel()
	const ports = 10
	metrics, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := shardPlane(t, func(o *agent.Options) {
		o.Policy.ShardPorts = nat.PortRange{From: 20000, To: 20000 + ports - 1}
		o.HTTP = metrics
	})
	ext, ext2 := p.topo.Ext, p.topo.Ext2
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	outside, elsewhere := overUDP().serveOn(t, ext.NS, 0), overUDP().serveOn(t, ext2.NS, outsidePort)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		var open []*testenv.Conn
		used := map[netip.AddrPort]bool{}
		for range ports {
			conn := overUDP().connect(t, p.topo.Web.NS, anywhere(), outside.At(ext.Addr(f)))
			require.Equal(t, public(f, 200), conn.SeenByPeer.Addr())
			require.GreaterOrEqual(t, conn.SeenByPeer.Port(), uint16(20000))
			require.Less(t, conn.SeenByPeer.Port(), uint16(20000+ports))
			used[conn.SeenByPeer] = true
			open = append(open, conn)
		}
		require.Len(t, used, ports)

		before := kernelCount(t, p.topo.NodeA, "insert_failed")
		testenv.Unreachable(t, "one more", func() error {
			_, err := testenv.DialUDP(p.topo.DB.NS, anywhere(), outside.At(ext.Addr(f)), soon)
			return err
		})
		require.Greater(t, kernelCount(t, p.topo.NodeA, "insert_failed"), before)
		for _, conn := range open {
			require.NoError(t, conn.RoundTrip())
		}
		require.Equal(t, public(f, 200), overUDP().leavesWith(t, p.topo.DB.NS, elsewhere.At(ext2.Addr(f))))
		_, err := testenv.Echo{Dst: ext.Addr(f), ID: 9, Seq: 1}.Ping(p.topo.DB.NS, patience)
		require.NoError(t, err, "identifiers of echo are counted apart")

		report, err := p.agents["node-a"].agent.Report(context.Background())
		require.NoError(t, err)
		require.Empty(t, report.Problems)
		require.EqualValues(t, kernelCount(t, p.topo.NodeA, "insert_failed"), report.Conntrack.InsertFailed)
		for _, s := range report.Shards {
			if s.Address == public(f, 200) {
				require.Equal(t, ports, s.BusiestPorts)
				require.Equal(t, ports, s.PortsPerPeer)
				require.Equal(t, outside.At(ext.Addr(f)).String()+" UDP", s.Busiest)
				require.GreaterOrEqual(t, s.Flows, ports+2)
			}
		}
		text := scrape(t, metrics.Addr().String())
		require.Contains(t, text, `natplane_shard_busiest_peer_ports{address="`+public(f, 200).String()+`"} 10`)
		require.NotContains(t, text, "natplane_conntrack_insert_failed_total 0\n")
	})
	uplink.Never(t, "a private source", isPrivate)

	// A port comes free with its flow.
	require.NotEmpty(t, p.topo.NodeA.NS.Nft(t, "list", "map", "inet", "natplane", "shard4"))
	_, err = p.topo.NodeA.NS.Run(context.Background(), "conntrack", "-D", "-f", "ipv4", "-q", public(testenv.IPv4, 200).String())
	require.NoError(t, err)
	require.Equal(t, public(testenv.IPv4, 200), overUDP().leavesWith(t, p.topo.DB.NS, outside.At(ext.Addr4())))
}

// outsidePort is any port that the test knows beforehand.
const outsidePort = 9999

func scrape(t *testing.T, address string) string {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return strings.ReplaceAll(string(body), "\r", "")
}
