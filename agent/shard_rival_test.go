// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// shardRivals are a Service whose machine is on node-a and a shard that want the same addresses.
type shardRivals struct {
	*plane
	t *testing.T
	// source is a machine behind the shard.
	source *testenv.Machine
	// tcp and udp are the client's, outside.
	tcp, udp *testenv.Server
}

// newShardRivals makes the Service younger or older than the shard.
func newShardRivals(t *testing.T, shardNode string, serviceAge int) *shardRivals {
	t.Helper()
	p := emptyTenant(t)
	s := &shardRivals{plane: p, t: t, source: map[string]*testenv.Machine{"node-a": p.topo.DB, "node-b": p.topo.Mail}[shardNode]}
	for _, node := range []string{"node-a", "node-b"} {
		p.start(node, withRole(nat.ShardOn))
	}
	p.objects.shard(shardName, shardNode, dual(10)...)
	p.objects.expose(exposure{
		name: tenantNamespace + "web", age: serviceAge, public: dual(10), whole: true, node: "node-a", backends: p.topo.Web.Addrs,
	})
	answer(t, p.topo.Web.NS)
	s.tcp, s.udp = overTCP().serveOn(t, p.topo.Ext.NS, 0), overUDP().serveOn(t, p.topo.Ext.NS, 0)
	p.settle()
	return s
}

// requireService shows that the Service has the address in both directions and the shard has not, and returns what is open through it.
func (s *shardRivals) requireService() map[string]*testenv.Conn {
	t, web, ext := s.t, s.topo.Web, s.topo.Ext
	t.Helper()
	s.announce(10, s.topo.NodeA)
	conns := map[string]*testenv.Conn{}
	for _, f := range testenv.Families() {
		visit{name: "in", from: ext.NS, to: public(f, 10), sees: ext.Addr(f), at: web.Addr(f)}.check(t)
		require.Equal(t, public(f, 10), overTCP().leavesWith(t, web.NS, s.tcp.At(ext.Addr(f))))
		testenv.Unreachable(t, "through the shard", func() error {
			_, err := testenv.DialUDP(s.source.NS, anywhere(), s.udp.At(ext.Addr(f)), soon)
			return err
		})
		require.Empty(t, behind(t, s.source.Node.NS, s.source.Addr(f)))
		conns["TCP in "+f.String()] = overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort))
		conns["UDP in "+f.String()] = overUDP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort))
	}
	return conns
}

// requireShard shows that the shard has the address and the Service has not, and returns what is open through it.
func (s *shardRivals) requireShard() map[string]*testenv.Conn {
	t, ext := s.t, s.topo.Ext
	t.Helper()
	s.announce(10, s.source.Node)
	conns := map[string]*testenv.Conn{}
	for _, f := range testenv.Families() {
		for _, tr := range []struct {
			transport
			at *testenv.Server
		}{{overTCP(), s.tcp}, {overUDP(), s.udp}} {
			out := tr.connect(t, s.source.NS, anywhere(), tr.at.At(ext.Addr(f)))
			require.Equal(t, public(f, 10), out.SeenByPeer.Addr())
			conns[tr.name+" out "+f.String()] = out
		}
		// Wherever the network sends it.
		for _, node := range []*testenv.Node{s.topo.NodeA, s.topo.NodeB} {
			require.NoError(t, s.topo.Announce(public(f, 10), node))
			visit{name: "at " + node.Name, from: ext.NS, to: public(f, 10)}.refused(t)
		}
		require.NoError(t, s.topo.Announce(public(f, 10), s.source.Node))
	}
	return conns
}

// requireOver shows that nothing is left of what was open through an owner that is gone, on either node.
func (s *shardRivals) requireOver(conns map[string]*testenv.Conn) {
	t := s.t
	t.Helper()
	for _, node := range []*testenv.Node{s.topo.NodeA, s.topo.NodeB} {
		s.requireLegal(t, node.Name)
		for _, f := range allFlows(t, node.NS) {
			for name, c := range conns {
				require.NotEqual(t, c.Local, netip.AddrPortFrom(f.Orig.Src, f.Orig.SrcPort), "%s has a flow on %s", name, node.Name)
			}
		}
	}
	for name, c := range conns {
		requireCut(t, name, c)
	}
}

// TestShardAndServiceWithOneAddress: the older of the two translates, never both; when it goes, so do its flows, and the other takes over.
func TestShardAndServiceWithOneAddress(t *testing.T) {
	t.Parallel()
	for _, node := range []string{"node-a", "node-b"} {
		t.Run("the Service is older than a shard of "+node, func(t *testing.T) {
			t.Parallel()
			s := newShardRivals(t, node, 5)
			conns := s.requireService()
			s.objects.deleteService(tenantNamespace + "web")
			s.settle()
			s.requireOver(conns)
			s.requireShard()
		})
		t.Run("the Service is younger than a shard of "+node, func(t *testing.T) {
			t.Parallel()
			s := newShardRivals(t, node, -5)
			conns := s.requireShard()
			s.objects.deleteShard(shardName)
			s.settle()
			s.requireOver(conns)
			s.requireService()
		})
	}
}
