// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/node"
	"github.com/natplane/natplane/testenv"
)

// behindAGlob has every interface that begins with v-t be a tenant of its own.
func behindAGlob(o *agent.Options) {
	o.Policy.Tenants = nat.Tenants{MarkMask: nat.DefaultTenantMarkMask, Flags: []nat.TenantFlag{{Interface: "v-t*"}}}
}

// inputRules adds or deletes the rules of both families for what arrives from a tenant.
func (o overlapping) inputRules(m *testenv.Machine, table int, change func(*netlink.Handle, *netlink.Rule) error) {
	o.t.Helper()
	nl, err := o.topo.NodeA.NS.Netlink()
	require.NoError(o.t, err)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		r := netlink.NewRule()
		r.Family, r.IifName, r.Priority, r.Table = family, m.NodeIf, 500, table
		require.NoError(o.t, change(nl, r))
	}
}

// untilTenants waits until the agent has let in these interfaces, with these tables, and no others.
func (o overlapping) untilTenants(want map[*testenv.Machine]uint16) {
	o.t.Helper()
	testenv.Eventually(o.t, patience, "tenants", func() error {
		state, err := o.agents["node-a"].agent.State(context.Background())
		if err != nil {
			return err
		}
		got := map[string]uint16{}
		for _, t := range state.Host.Tenants {
			got[t.Interface] = t.Table
		}
		for m, table := range want {
			if have, known := got[m.NodeIf]; !known || have != table {
				return fmt.Errorf("%v", got)
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
	o.settle()
}

// globPlane has two tenants behind a glob, whose tables the agent finds.
func globPlane(t *testing.T, edits ...func(*agent.Options)) overlapping {
	t.Helper()
	o := overlappingPlane(t, append([]func(*agent.Options){behindAGlob}, edits...)...)
	o.inputRules(o.a, 100, (*netlink.Handle).RuleAdd)
	o.inputRules(o.b, 200, (*netlink.Handle).RuleAdd)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200})
	return o
}

// apart shows that two tenants with equal addresses and ports reach a peer at the same time, and nobody else's packets.
func (o overlapping) apart(t *testing.T, a, b *testenv.Machine, port uint16) {
	t.Helper()
	ext := o.topo.Ext
	atA, atB, atWeb := testenv.CaptureT(t, a.NS, a.If), testenv.CaptureT(t, b.NS, b.If), testenv.CaptureT(t, o.topo.Web.NS, o.topo.Web.If)
	for _, tr := range []transport{overTCP(), overUDP()} {
		outside := tr.serveOn(t, ext.NS, 0)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			one := tr.connect(t, a.NS, testenv.LocalPort(port), outside.At(ext.Addr(f)))
			two := tr.connect(t, b.NS, testenv.LocalPort(port), outside.At(ext.Addr(f)))
			require.Equal(t, public(f, 200), one.SeenByPeer.Addr())
			require.Equal(t, public(f, 200), two.SeenByPeer.Addr())
			require.NotEqual(t, one.SeenByPeer, two.SeenByPeer)
			for range 3 {
				require.NoError(t, one.RoundTrip())
				require.NoError(t, two.RoundTrip())
			}
		})
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, m := range []*testenv.Machine{a, b} {
			_, err := testenv.Echo{Dst: ext.Addr(f), ID: 77, Seq: 1, Payload: []byte("echo of " + m.Name)}.Ping(m.NS, patience)
			require.NoError(t, err)
		}
	})
	arrival(t, atA, "its own echo", marked("echo of "+a.Name))
	atA.Never(t, "the echo of the other", marked("echo of "+b.Name))
	atB.Never(t, "the echo of the other", marked("echo of "+a.Name))
	atWeb.Never(t, "an echo of a tenant", marked("echo of "))
}

// TestTenantsBehindAGlob are kept apart by the tables that the operator's rules name. A restart changes nothing.
func TestTenantsBehindAGlob(t *testing.T) {
	t.Parallel()
	o := globPlane(t)
	o.apart(t, o.a, o.b, 40010)
	node := o.topo.NodeA.NS
	ruleset := func() string { return node.Nft(t, "-a", "-s", "list", "chain", "inet", "natplane_tenants", "zones") }
	before := ruleset()
	require.Contains(t, before, "handle")
	ext := o.topo.Ext
	outside := overTCP().serveOn(t, ext.NS, 0)
	conn := overTCP().connect(t, o.a.NS, testenv.LocalPort(40020), outside.At(ext.Addr4()))
	o.stop("node-a")
	require.NoError(t, conn.RoundTrip())
	o.start("node-a", withTenants, behindAGlob)
	o.settle()
	require.Equal(t, before, ruleset(), "not written again")
	require.NoError(t, conn.RoundTrip())
	o.stop("node-a")
	_, err := agent.Cleanup(t.Context(), node.FD())
	require.NoError(t, err)
	require.NotContains(t, node.Nft(t, "list", "ruleset"), "natplane")
}

// TestTenantsOfOneTable are one tenant, whatever interface they are behind.
func TestTenantsOfOneTable(t *testing.T) {
	t.Parallel()
	o := overlappingPlane(t, func(o *agent.Options) {
		o.Policy.Tenants.Flags = []nat.TenantFlag{{Interface: "v-tb", Table: 200}, {Interface: "v-t*", Table: 100}, {Interface: "v-tb*", Table: 7}}
	})
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200})
	o.apart(t, o.a, o.b, 40030)
	// With its way back in the table, one that appears needs nothing else.
	require.NoError(t, o.topo.RemoveMachine(o.a))
	c := o.addTenant("tc", 100)
	o.untilTenants(map[*testenv.Machine]uint16{c: 100, o.b: 200})
	o.apart(t, c, o.b, 40040)
}

// TestTenantWithoutATableIsClosed until the operator names one, and again when that is taken back.
func TestTenantWithoutATableIsClosed(t *testing.T) {
	t.Parallel()
	log := &writing{}
	o := overlappingPlane(t, behindAGlob, logTo(log))
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 0, o.b: 0})
	ext := o.topo.Ext
	outside := overUDP().serveOn(t, ext.NS, 0)
	uplink := testenv.CaptureT(t, o.topo.NodeA.NS, o.topo.NodeA.Uplink)
	atNode := testenv.CaptureT(t, o.topo.NodeA.NS, o.a.NodeIf)
	closed := func(t *testing.T) {
		t.Helper()
		require.NoError(t, testenv.ResetAll(uplink, atNode))
		const comment = "closed: give =TABLE, put it into a VRF, or ip rule add iif v-ta lookup TABLE"
		before := o.counterOf("node-a", comment)
		for _, f := range testenv.Families() {
			mark := "of nobody, " + f.String()
			send(t, o.a.NS, testenv.UDPDatagram{
				Src: netip.AddrPortFrom(o.a.Addr(f), 40050), Dst: outside.At(ext.Addr(f)), Payload: []byte(mark),
			}.Packet())
			arrival(t, atNode, "the packet", marked(mark))
		}
		uplink.Never(t, "what came by a closed interface", func(pk testenv.Packet) bool { return bytes.Contains(pk.Raw, []byte("of nobody")) })
		require.EqualValues(t, before+2, o.counterOf("node-a", comment))
	}
	closed(t)
	require.Contains(t, o.warnings(node.WarnTenantClosed), "v-ta is closed")
	require.Equal(t, 1, strings.Count(log.String(), "interface=v-ta"), log.String())

	o.inputRules(o.a, 100, (*netlink.Handle).RuleAdd)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 0})
	require.NotContains(t, o.warnings(node.WarnTenantClosed), "v-ta is closed")
	conns := map[testenv.Family]*testenv.Conn{}
	for _, f := range testenv.Families() {
		conns[f] = overUDP().connect(t, o.a.NS, testenv.LocalPort(40051), outside.At(ext.Addr(f)))
	}
	o.inputRules(o.b, 200, (*netlink.Handle).RuleAdd)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200})
	o.apart(t, o.a, o.b, 40052)

	o.inputRules(o.a, 100, (*netlink.Handle).RuleDel)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 0, o.b: 200})
	closed(t)
	for f, conn := range conns {
		require.NotContains(t, flowsTo(t, o.topo.NodeA, ext.Addr(f)), "sport=40051")
		conn.SetTimeout(soon)
		require.Error(t, conn.RoundTrip())
	}
}

// warnings are those of the node with a code.
func (p *plane) warnings(code string) string {
	p.t.Helper()
	report, err := p.agents["node-a"].agent.Report(context.Background())
	require.NoError(p.t, err)
	var all []string
	for _, w := range report.Warnings {
		if w.Code == code {
			all = append(all, w.Message)
		}
	}
	return strings.Join(all, "\n")
}

// TestTenantThatAppearsAndGoes: it works from the moment that its interface and its rule are there; with its interface its flows go, and
// nobody else's.
func TestTenantThatAppearsAndGoes(t *testing.T) {
	t.Parallel()
	o := globPlane(t)
	ext := o.topo.Ext
	outside := overTCP().serveOn(t, ext.NS, 0)
	stays := overTCP().connect(t, o.b.NS, anywhere(), outside.At(ext.Addr4()))
	c := o.addTenant("tc", 30)
	o.inputRules(c, 30, (*netlink.Handle).RuleAdd)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200, c: 30})
	o.apart(t, o.a, c, 40060)
	for _, f := range testenv.Families() {
		overTCP().connect(t, c.NS, testenv.LocalPort(40061), outside.At(ext.Addr(f)))
		require.Contains(t, flowsTo(t, o.topo.NodeA, ext.Addr(f)), "sport=40061")
	}
	require.NoError(t, o.topo.RemoveMachine(c))
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200})
	for _, f := range testenv.Families() {
		require.NotContains(t, flowsTo(t, o.topo.NodeA, ext.Addr(f)), "sport=40061")
	}
	require.NoError(t, stays.RoundTrip())
}

// TestTenantThatNobodyLookedAtIsClosed: an interface that appears while no agent runs is neither in zone 0 nor anybody's. One of another name
// is left alone.
func TestTenantThatNobodyLookedAtIsClosed(t *testing.T) {
	t.Parallel()
	o := globPlane(t)
	ext := o.topo.Ext
	o.stop("node-a")
	c := o.addTenant("tc", 30)
	uplink, atNode := testenv.CaptureT(t, o.topo.NodeA.NS, o.topo.NodeA.Uplink), testenv.CaptureT(t, o.topo.NodeA.NS, c.NodeIf)
	outside := overUDP().serveOn(t, ext.NS, 0)
	for _, f := range testenv.Families() {
		mark := "too early, " + f.String()
		send(t, c.NS, testenv.UDPDatagram{Src: netip.AddrPortFrom(c.Addr(f), 40070), Dst: outside.At(ext.Addr(f)), Payload: []byte(mark)}.Packet())
		arrival(t, atNode, "the packet", marked(mark))
	}
	uplink.Never(t, "what came by an unknown interface", func(pk testenv.Packet) bool { return bytes.Contains(pk.Raw, []byte("too early")) })
	require.Regexp(t, `counter packets [1-9]\d* bytes \d+ drop comment "matches --tenant-interface and is not known yet`,
		o.topo.NodeA.NS.Nft(t, "list", "chain", "inet", "natplane_tenants", "closed"))
	overUDP().connect(t, o.topo.DB.NS, anywhere(), outside.At(ext.Addr4()))
	overUDP().connect(t, o.a.NS, anywhere(), outside.At(ext.Addr4()))
}

// TestTenantsAreLetInOnlyWhileTheMainTableNamesThem: at each transaction of the main table, before and after, or for that moment a tenant would
// be taken for the machine that has its address.
func TestTenantsAreLetInOnlyWhileTheMainTableNamesThem(t *testing.T) {
	t.Parallel()
	var ns atomic.Pointer[testenv.NetNS]
	var checked atomic.Int64
	breaches := &writing{}
	check := func(when string) { // in the agent's goroutine
		if ns.Load() == nil {
			return
		}
		named, err := ns.Load().Run(context.Background(), "nft", "list", "set", "inet", "natplane", "tenant_if")
		zones, zonesErr := ns.Load().Run(context.Background(), "nft", "list", "chain", "inet", "natplane_tenants", "zones")
		if err := errors.Join(err, zonesErr); err != nil {
			fmt.Fprintln(breaches, err)
		}
		for _, in := range regexp.MustCompile(`"(v-t[a-z])" : `).FindAllStringSubmatch(zones, -1) {
			if !strings.Contains(named, in[1]) {
				fmt.Fprintln(breaches, in[1], when)
			}
			checked.Add(1)
		}
	}
	o := globPlane(t, func(o *agent.Options) {
		agent.HookCommit(o, func(send func() error) error {
			check("before a transaction")
			err := send()
			check("after a transaction")
			return err
		})
	})
	ns.Store(o.topo.NodeA.NS)
	c := o.addTenant("tc", 30)
	o.inputRules(c, 30, (*netlink.Handle).RuleAdd)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, o.b: 200, c: 30})
	require.NoError(t, o.topo.RemoveMachine(o.b))
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 100, c: 30})
	require.NotZero(t, checked.Load())
	require.Empty(t, breaches.String())
	require.NotContains(t, ns.Load().Nft(t, "list", "set", "inet", "natplane", "tenant_if"), "v-tb")
	ns.Store(nil)
}

// TestTenantThatMoves to another table is another tenant: its old connections are not its own any more.
func TestTenantThatMoves(t *testing.T) {
	t.Parallel()
	o := globPlane(t)
	ext := o.topo.Ext
	outside := overUDP().serveOn(t, ext.NS, 0)
	overUDP().connect(t, o.a.NS, testenv.LocalPort(40080), outside.At(ext.Addr4()))
	nl, err := o.topo.NodeA.NS.Netlink()
	require.NoError(t, err)
	link, err := nl.LinkByName(o.a.NodeIf)
	require.NoError(t, err)
	for _, addr := range tenantAddrs() {
		require.NoError(t, nl.RouteAdd(&netlink.Route{
			Dst: netlink.NewIPNet(addr.AsSlice()), LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Table: 101,
		}))
	}
	o.inputRules(o.a, 101, (*netlink.Handle).RuleAdd)
	o.inputRules(o.a, 100, (*netlink.Handle).RuleDel)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 101, o.b: 200})
	require.NotContains(t, flowsTo(t, o.topo.NodeA, ext.Addr4()), "sport=40080")
	o.apart(t, o.a, o.b, 40081)
}

// TestRepliesToATenantThatIsGoneReachNobody, not even before its flows are found: the main table leads to a machine with the same address.
func TestRepliesToATenantThatIsGoneReachNobody(t *testing.T) {
	t.Parallel()
	o := globPlane(t, func(o *agent.Options) {
		agent.WrapFlows(o, func(t conntrack.Table) conntrack.Table { return blindTable{t} })
	})
	ext := o.topo.Ext
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	testenv.Absorb(t, ext.NS, 17)
	seen := map[testenv.Family]testenv.Packet{}
	for _, f := range testenv.Families() {
		mark := "question, " + f.String()
		send(t, o.a.NS, testenv.UDPDatagram{
			Src: netip.AddrPortFrom(o.a.Addr(f), 40090), Dst: netip.AddrPortFrom(ext.Addr(f), 40091), Payload: []byte(mark),
		}.Packet())
		seen[f] = arrival(t, atExt, mark, marked(mark))
	}
	atWeb, atA := testenv.CaptureT(t, o.topo.Web.NS, o.topo.Web.If), testenv.CaptureT(t, o.a.NS, o.a.If)
	answer := func(mark string) {
		t.Helper()
		for f, q := range seen {
			send(t, ext.NS, testenv.UDPDatagram{
				Src: netip.AddrPortFrom(ext.Addr(f), 40091), Dst: netip.AddrPortFrom(q.Src, q.SrcPort), Payload: []byte(mark),
			}.Packet())
		}
	}
	answer("welcome")
	arrival(t, atA, "the answer", marked("welcome"))
	o.inputRules(o.a, 100, (*netlink.Handle).RuleDel)
	o.untilTenants(map[*testenv.Machine]uint16{o.a: 0, o.b: 200})
	require.Contains(t, flowsTo(t, o.topo.NodeA, ext.Addr4()), "sport=40090")
	answer("too late")
	testenv.Eventually(t, patience, "drops", func() error {
		if n := o.counterOf("node-a", "of a tenant that is gone: the main table would lead to somebody else"); n != 2 {
			return fmt.Errorf("%d dropped", n)
		}
		return nil
	})
	atWeb.Never(t, "an answer to a tenant", marked("too late"))
	atA.Never(t, "an answer to a closed tenant", marked("too late"))
}

// TestAnswersToATenantStayInside, also where the table of the tenant has a default route, for the way out, and no other.
func TestAnswersToATenantStayInside(t *testing.T) {
	t.Parallel()
	o := globPlane(t)
	ext, node := o.topo.Ext, o.topo.NodeA
	nl, err := node.NS.Netlink()
	require.NoError(t, err)
	up, err := nl.LinkByName(node.Uplink)
	require.NoError(t, err)
	outside := overUDP().serveOn(t, ext.NS, 0)
	conns := map[testenv.Family]*testenv.Conn{}
	for _, f := range testenv.Families() {
		conns[f] = overUDP().connect(t, o.a.NS, testenv.LocalPort(40110), outside.At(ext.Addr(f)))
		main, err := nl.RouteGetWithOptions(ext.Addr(f).AsSlice(), nil)
		require.NoError(t, err)
		require.NoError(t, nl.RouteAdd(&netlink.Route{
			Dst: prefixNet(f.Default()), LinkIndex: up.Attrs().Index, Gw: main[0].Gw, Flags: int(netlink.FLAG_ONLINK), Table: 100,
		}))
		require.NoError(t, conns[f].RoundTrip(), "the tenant's own route comes first")
		require.NoError(t, nl.RouteDel(&netlink.Route{Dst: netlink.NewIPNet(o.a.Addr(f).AsSlice()), Table: 100, Scope: netlink.SCOPE_LINK}))
	}
	uplink := testenv.CaptureT(t, node.NS, node.Uplink)
	for f, conn := range conns {
		conn.SetTimeout(soon)
		require.Error(t, conn.RoundTrip())
		uplink.Never(t, "the answer on its way outside", func(pk testenv.Packet) bool {
			return pk.Dir == testenv.Out && pk.Dst == o.a.Addr(f)
		})
	}
	require.EqualValues(t, 2, o.counterOf("node-a", "the answer to a tenant would go outside"))
}

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// TestTableOfTenantsIsRepaired where it has no owner.
func TestTableOfTenantsIsRepaired(t *testing.T) {
	t.Parallel()
	o := globPlane(t, unowned)
	node := o.topo.NodeA.NS
	for _, command := range []string{"delete table inet natplane_tenants", "flush chain inet natplane_tenants zones", "flush ruleset"} {
		node.Nft(t, strings.Fields(command)...)
		testenv.Eventually(t, patience, "repair after "+command, func() error {
			if !strings.Contains(node.Nft(t, "list", "ruleset"), `"v-ta" : 100`) {
				return errors.New("not there yet")
			}
			return nil
		})
		o.settle()
	}
	o.apart(t, o.a, o.b, 40100)
}
