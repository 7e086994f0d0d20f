// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// cozyProxyRules are, in our words, what cozy-proxy keeps for the machine web: sources rewritten at raw priority, destinations at mangle
// priority, without connection tracking, and a filter by port.
const cozyProxyRules = `
table ip cozy_proxy {
	map pod_svc {
		type ipv4_addr : ipv4_addr
		elements = { 10.244.1.10 : 203.0.113.10 }
	}
	map svc_pod {
		type ipv4_addr : ipv4_addr
		elements = { 203.0.113.10 : 10.244.1.10 }
	}
	set filtered {
		type ipv4_addr
	}
	set allowed {
		type ipv4_addr . inet_proto . inet_service
	}
	chain sources {
		type filter hook prerouting priority raw; policy accept;
		ip saddr set ip saddr map @pod_svc
	}
	chain destinations {
		type filter hook prerouting priority mangle; policy accept;
		ip daddr set ip daddr map @svc_pod
	}
	chain ports {
		type filter hook forward priority filter; policy accept;
		ip daddr @filtered ip daddr . meta l4proto . th dport != @allowed drop
	}
}`

// somebodysTracking makes the kernel track connections, as kube-proxy and CNIs do on every node.
const somebodysTracking = `
table ip somebody {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established,related accept
	}
}`

func TestTakeOverFromCozyProxyKeepsConnections(t *testing.T) {
	t.Parallel()
	p := emptyPlane(t)
	node := p.topo.NodeA.NS
	node.NftScript(t, somebodysTracking)
	node.NftScript(t, cozyProxyRules)
	web, ext := p.topo.Web, p.topo.Ext
	public := netip.MustParseAddr("203.0.113.10")

	inside := testenv.ListenTCP(t, web.NS, netip.MustParseAddrPort("0.0.0.0:8080"))
	insideUDP := testenv.ListenUDP(t, web.NS, netip.MustParseAddrPort("0.0.0.0:8080"))
	outside := testenv.ListenTCP(t, ext.NS, netip.MustParseAddrPort("0.0.0.0:9000"))
	in, err := testenv.DialTCP(ext.NS, netip.AddrPort{}, inside.At(public), patience)
	require.NoError(t, err)
	inUDP, err := testenv.DialUDP(ext.NS, netip.AddrPort{}, insideUDP.At(public), patience)
	require.NoError(t, err)
	out, err := testenv.DialTCP(web.NS, netip.AddrPort{}, outside.At(ext.Addr4()), patience)
	require.NoError(t, err)
	require.Equal(t, public, out.SeenByPeer.Addr(), "cozy-proxy translates")

	// Senders that do not pause are the hard case: their packets meet every moment of the hand-over.
	busy := newTalkers(t)
	busy.talk(in, false)
	busy.talk(out, false)
	busy.talk(inUDP, true)
	p.start("node-a")
	p.settle()
	busy.stop()

	require.NotContains(t, node.Nft(t, "list", "tables"), "cozy_proxy")
	require.NotContains(t, node.Nft(t, "list", "tables"), "natplane_takeover")
	for name, c := range map[string]*testenv.Conn{"in": in, "in UDP": inUDP, "out": out} {
		require.NoError(t, c.RoundTrip(), name)
	}
	require.Equal(t, public, out.SeenByPeer.Addr())
	require.Equal(t, ext.Addr4(), in.SeenByPeer.Addr())
	again, err := testenv.DialTCP(ext.NS, netip.AddrPort{}, inside.At(public), patience)
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestTakeOverIsOptional(t *testing.T) {
	t.Parallel()
	p := emptyPlane(t)
	node := p.topo.NodeA.NS
	node.NftScript(t, cozyProxyRules)
	before := node.Nft(t, "list", "table", "ip", "cozy_proxy")
	p.start("node-a", func(o *agent.Options) { o.LeavePredecessor = true })
	p.settle()
	require.Equal(t, before, node.Nft(t, "list", "table", "ip", "cozy_proxy"))
	report, err := p.agents["node-a"].agent.Report(t.Context())
	require.NoError(t, err)
	require.True(t, report.Health.Predecessor)
	require.Contains(t, report.Problems[len(report.Problems)-1], "nft delete table ip cozy_proxy")
}

// talkers use connections all the time, each from one goroutine.
type talkers struct {
	t    testing.TB
	quit chan struct{}
	done []chan error
}

func newTalkers(t testing.TB) *talkers { return &talkers{t: t, quit: make(chan struct{})} }

// talk makes round trips on a connection until stop. A lossy one may miss answers, but not be answered by another address.
func (w *talkers) talk(c *testenv.Conn, lossy bool) {
	done := make(chan error, 1)
	w.done = append(w.done, done)
	c.SetTimeout(patience)
	if lossy {
		c.SetTimeout(100 * time.Millisecond)
	}
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-w.quit:
				done <- nil
				return
			case <-tick.C:
			}
			if err := c.RoundTrip(); err != nil && !(lossy && testenv.IsUnreachable(err)) {
				done <- err
				return
			}
		}
	}()
}

func (w *talkers) stop() {
	w.t.Helper()
	close(w.quit)
	for _, done := range w.done {
		require.NoError(w.t, <-done)
	}
}
