// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/testenv"
)

// programOnly writes the table of node-a as the agent would, but audits no flow.
func (p *plane) programOnly(t *testing.T) {
	t.Helper()
	node := p.topo.NodeA
	engine := nat.NewEngine(nat.Config{Node: node.Name, ProxyNames: nat.DefaultProxyNames(), ClusterCIDRs: clusterCIDRs()}, nil)
	engine.Apply(p.objects.current, nat.Facts{Uplinks: []string{node.Uplink}})
	engine.SetWorkloads([]string{p.topo.Web.NodeIf})
	table, err := nft.Open(nft.Options{NetNS: node.NS.FD()})
	require.NoError(t, err)
	_, err = table.Sync(engine.State())
	require.NoError(t, err)
	require.NoError(t, table.Close())
}

// untranslatedPlane has no agent yet, but connections are tracked: of the machine web to ext, and of ext to the private address of web.
// The router knows the way to it.
func untranslatedPlane(t *testing.T) (p *plane, outwards, inwards []*testenv.Conn) {
	t.Helper()
	p = emptyPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	for k := range p.objects.current.Services {
		p.objects.deleteService(k.String())
	}
	p.objects.pod(tenantNamespace+web.Name, web.Node.Name, web.Addrs...)
	p.objects.expose(exposure{name: tenantNamespace + "web", node: web.Node.Name, public: dual(10), whole: true, backends: web.Addrs})
	p.topo.NodeA.NS.NftScript(t, foreign("type filter hook prerouting priority filter\nct state established counter"))
	answer(t, web.NS)
	answer(t, ext.NS)
	for _, f := range testenv.Families() {
		for _, tr := range []transport{overTCP(), overUDP()} {
			out := tr.connect(t, web.NS, anywhere(), netip.AddrPortFrom(ext.Addr(f), appPort))
			require.Equal(t, web.Addr(f), out.SeenByPeer.Addr())
			outwards = append(outwards, out)
			inwards = append(inwards, tr.connect(t, ext.NS, anywhere(), netip.AddrPortFrom(web.Addr(f), appPort)))
		}
	}
	return p, outwards, inwards
}

// leavesPrivately matches what a machine sends to the server of ext without translation.
func leavesPrivately(m *testenv.Machine) func(testenv.Packet) bool {
	return func(pk testenv.Packet) bool {
		return pk.Dir == testenv.Out && pk.DstPort == appPort && (pk.Src == m.Addr4() || pk.Src == m.Addr6())
	}
}

// TestLeftoverFlowsDoNotLeakBeforeTheAudit: what was open before the machine got its address never was translated and never will be.
func TestLeftoverFlowsDoNotLeakBeforeTheAudit(t *testing.T) {
	t.Parallel()
	p, outwards, inwards := untranslatedPlane(t)
	knockAt := func(f testenv.Family) { // goes round and round between router and node, until there is a table
		send(t, p.topo.Ext.NS, testenv.UDPDatagram{
			Src: netip.AddrPortFrom(p.topo.Ext.Addr(f), 4200), Dst: netip.AddrPortFrom(public(f, 10), 9), Payload: []byte("knock"),
		}.Packet())
	}
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	for _, f := range testenv.Families() {
		knockAt(f)
		arrival(t, uplink, "knock before", func(pk testenv.Packet) bool { return pk.Dir == testenv.Out && pk.Dst == public(f, 10) })
	}
	p.programOnly(t)
	require.NoError(t, uplink.Reset())
	for _, f := range testenv.Families() {
		knockAt(f)
		uplink.Never(t, "knock after", func(pk testenv.Packet) bool { return pk.Dir == testenv.Out && pk.Dst == public(f, 10) })
	}
	for _, conn := range outwards {
		conn.SetTimeout(soon)
		testenv.Unreachable(t, "leftover to "+conn.Remote.String(), conn.RoundTrip)
	}
	for _, f := range testenv.Families() {
		visit{name: "new connection", from: p.topo.Web.NS, to: p.topo.Ext.Addr(f), sees: public(f, 10)}.check(t)
		visit{name: "to the private address", from: p.topo.Ext.NS, to: p.topo.Web.Addr(f), sees: p.topo.Ext.Addr(f), at: p.topo.Web.Addr(f)}.check(t)
	}
	for _, conn := range inwards {
		require.NoError(t, conn.RoundTrip(), "came to the private address before")
	}
	uplink.Never(t, "leftover", leavesPrivately(p.topo.Web))
}

// TestLeftoverFlowsAreTranslatedAfterTheAudit, as far as their protocol bears a change of the address.
func TestLeftoverFlowsAreTranslatedAfterTheAudit(t *testing.T) {
	t.Parallel()
	p, outwards, inwards := untranslatedPlane(t)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	p.start("node-a")
	p.settle()
	require.NoError(t, uplink.Reset())
	for i, conn := range outwards {
		f := testenv.FamilyOf(conn.Remote.Addr())
		if i%2 == 1 { // UDP
			require.NoError(t, conn.RoundTrip())
			require.Equal(t, public(f, 10), conn.SeenByPeer.Addr())
			continue
		}
		conn.SetTimeout(soon)
		testenv.Unreachable(t, "the server does not know the other address", conn.RoundTrip)
	}
	for _, conn := range inwards {
		require.NoError(t, conn.RoundTrip(), "came to the private address before")
	}
	for _, f := range testenv.Families() {
		visit{name: "new connection", from: p.topo.Web.NS, to: p.topo.Ext.Addr(f), sees: public(f, 10)}.check(t)
	}
	uplink.Never(t, "leftover", leavesPrivately(p.topo.Web))
}

// TestPrivateAddressesAnswerWhoKnowsTheWay, also where nobody told the agent that they belong to the cluster.
func TestPrivateAddressesAnswerWhoKnowsTheWay(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	addrs := []netip.Addr{netip.MustParseAddr("172.30.0.5"), netip.MustParseAddr("fd00:99::5")}
	odd, err := p.topo.AddMachine(p.topo.NodeA, "odd", addrs...)
	require.NoError(t, err)
	for _, a := range addrs {
		require.NoError(t, p.topo.Announce(a, p.topo.NodeA))
	}
	p.objects.pod(tenantNamespace+"odd", p.topo.NodeA.Name, addrs...)
	p.serve(odd, exposure{name: "odd", public: dual(10), whole: true})
	answer(t, odd.NS)
	answer(t, p.topo.Ext.NS)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "private", from: p.topo.Ext.NS, to: odd.Addr(f), sees: p.topo.Ext.Addr(f), at: odd.Addr(f)}.check(t)
		visit{name: "public", from: p.topo.Ext.NS, to: public(f, 10), sees: p.topo.Ext.Addr(f), at: odd.Addr(f)}.check(t)
		visit{name: "own", from: odd.NS, to: p.topo.Ext.Addr(f), sees: public(f, 10)}.check(t)
	})
}
