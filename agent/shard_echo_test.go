// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// TestShardEchoAnswersFromOutside with the shard's address, and for nothing but echo requests; a machine's own echo is no matter of it.
func TestShardEchoAnswersFromOutside(t *testing.T) {
	t.Parallel()
	p := shardPlane(t, func(o *agent.Options) { o.Policy.ShardEcho = true })
	ext, web := p.topo.Ext, p.topo.Web
	overTCP().serveOn(t, p.topo.NodeA.NS, 22)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		ping := testenv.Echo{Dst: public(f, 200), ID: 7, Seq: 1}
		_, err := ping.Ping(ext.NS, patience)
		require.NoError(t, err)
		p.objects.shard(shardName, "node-a", dual(200)...) // a change of nothing, and its audit
		p.settle()
		ping.Seq++
		_, err = ping.Ping(ext.NS, patience)
		require.NoError(t, err)

		_, err = testenv.Echo{Dst: ext.Addr(f), ID: 8, Seq: 1}.Ping(web.NS, patience)
		require.NoError(t, err)
		testenv.Unreachable(t, "ping from inside", func() error {
			_, err := testenv.Ping(web.NS, netip.Addr{}, public(f, 200), soon)
			return err
		})
		testenv.Unreachable(t, "TCP", func() error {
			_, err := testenv.DialTCP(ext.NS, anywhere(), netip.AddrPortFrom(public(f, 200), 22), soon)
			return err
		})
	})
	uplink.Never(t, "the node's address in place of the shard's", func(pk testenv.Packet) bool {
		return pk.Dir == testenv.Out && pk.ICMPID == 7 && pk.Src != public(testenv.IPv4, 200) && pk.Src != public(testenv.IPv6, 200)
	})
}
