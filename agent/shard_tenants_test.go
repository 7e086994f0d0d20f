// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// tenantAddrs are what both tenants have. The IPv4 address is in use in the cluster as well.
func tenantAddrs() []netip.Addr {
	return []netip.Addr{netip.MustParseAddr("10.244.1.10"), netip.MustParseAddr("fd00:10:244:1::10")}
}

// overlapping is a shardPlane with two tenants that have the addresses of the machine web, which has addresses of its own.
type overlapping struct {
	*plane
	a, b *testenv.Machine
}

func twoTenants() nat.Tenants {
	return nat.Tenants{MarkMask: nat.DefaultTenantMarkMask, Flags: []nat.TenantFlag{{Interface: "v-ta", Table: 100}, {Interface: "v-tb", Table: 200}}}
}

func withTenants(o *agent.Options) { o.Policy.Tenants = twoTenants() }

func overlappingPlane(t *testing.T, edits ...func(*agent.Options)) overlapping {
	t.Helper()
	o := overlapping{plane: shardPlane(t, append([]func(*agent.Options){withTenants}, edits...)...)}
	o.a, o.b = o.addTenant("ta", 100), o.addTenant("tb", 200)
	o.serve(o.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	return o
}

// addTenant makes a machine with the addresses of web, behind the interface "v-" and its name, and a table that leads to it.
func (o overlapping) addTenant(name string, table int) *testenv.Machine {
	o.t.Helper()
	node := o.topo.NodeA
	nl, err := node.NS.Netlink()
	require.NoError(o.t, err)
	m, err := o.topo.AddMachine(node, name, tenantAddrs()...)
	require.NoError(o.t, err)
	link, err := nl.LinkByName(m.NodeIf)
	require.NoError(o.t, err)
	for _, addr := range tenantAddrs() {
		// The main table leads to web, as before; each tenant's table to the tenant.
		require.NoError(o.t, node.NS.SetRoute(testenv.Route{
			Dst: netip.PrefixFrom(addr, addr.BitLen()), Dev: o.topo.Web.NodeIf, Src: node.Addr(testenv.FamilyOf(addr)),
		}))
		require.NoError(o.t, nl.RouteAdd(&netlink.Route{
			Dst: netlink.NewIPNet(addr.AsSlice()), LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Table: table,
		}))
	}
	return m
}

// TestTenantsWithEqualAddresses at the same time, to one peer, with the same ports: each gets its own answers, and so does the machine that
// has their address.
func TestTenantsWithEqualAddresses(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	ext := p.topo.Ext
	atWeb := testenv.CaptureT(t, p.topo.Web.NS, p.topo.Web.If)
	for _, tr := range []transport{overTCP(), overUDP()} {
		outside := tr.serveOn(t, ext.NS, 0)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			a := tr.connect(t, p.a.NS, testenv.LocalPort(40001), outside.At(ext.Addr(f)))
			b := tr.connect(t, p.b.NS, testenv.LocalPort(40001), outside.At(ext.Addr(f)))
			web := tr.connect(t, p.topo.Web.NS, testenv.LocalPort(40001), outside.At(ext.Addr(f)))
			require.Equal(t, public(f, 200), a.SeenByPeer.Addr())
			require.Equal(t, public(f, 200), b.SeenByPeer.Addr())
			require.NotEqual(t, a.SeenByPeer, b.SeenByPeer)
			require.Equal(t, public(f, 10), web.SeenByPeer.Addr(), "the machine's own primary, which no tenant borrows")
			for range 3 {
				for _, conn := range []*testenv.Conn{a, b, web} {
					require.NoError(t, conn.RoundTrip())
				}
			}
			require.NoError(t, a.RoundTripSize(4000))
			require.NoError(t, b.RoundTripSize(4000))
		})
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, m := range []*testenv.Machine{p.a, p.b} {
			_, err := testenv.Echo{Dst: ext.Addr(f), ID: 77, Seq: 1, Payload: []byte("echo of " + m.Name)}.Ping(m.NS, patience)
			require.NoError(t, err)
		}
	})
	atWeb.Never(t, "an echo of a tenant", func(pk testenv.Packet) bool { return bytes.Contains(pk.Raw, []byte("echo of")) })
}

// TestTenantsGetTheirOwnErrors: a router tells about a packet of each, sent from equal ports.
func TestTenantsGetTheirOwnErrors(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	ext, router := p.topo.Ext, p.topo.Router
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	atA, atB := testenv.CaptureT(t, p.a.NS, p.a.If), testenv.CaptureT(t, p.b.NS, p.b.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		own, far := netip.AddrPortFrom(p.a.Addr(f), 40002), netip.AddrPortFrom(ext.Addr(f), 7001)
		sent := map[string]testenv.Packet{}
		for _, m := range []*testenv.Machine{p.a, p.b} {
			mark := fmt.Sprintf("%s of %s", f, m.Name)
			send(t, m.NS, testenv.UDPDatagram{Src: own, Dst: far, Payload: []byte(mark)}.Packet())
			sent[m.Name] = arrival(t, atExt, mark, marked(mark))
		}
		for i, at := range []*testenv.Capture{atA, atB} {
			m := []*testenv.Machine{p.a, p.b}[i]
			require.NoError(t, atA.Reset())
			require.NoError(t, atB.Reset())
			e, err := testenv.PacketTooBig(router.Addr(f), narrowMTU, sent[m.Name].Raw)
			require.NoError(t, err)
			send(t, router.NS, e.Packet())
			told := arrival(t, at, "the error for "+m.Name, tooBig(own.Addr(), far.Addr()))
			quoted, _ := told.Quoted()
			require.EqualValues(t, 40002, quoted.SrcPort)
			[]*testenv.Capture{atB, atA}[i].Never(t, "the error of the other", tooBig(own.Addr(), far.Addr()))
		}
	})
}

// TestFragmentsOfTenantsAreNotMixed: datagrams with equal addresses, ports and identifications, their fragments interleaved.
func TestFragmentsOfTenantsAreNotMixed(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	ext := p.topo.Ext
	atExt := testenv.CaptureT(t, ext.NS, clientIf)
	testenv.Absorb(t, ext.NS, unix.IPPROTO_UDP)
	first, second := map[string][]byte{}, map[string][]byte{}
	for _, name := range []string{"a", "b"} {
		whole := testenv.UDPDatagram{
			Src: netip.AddrPortFrom(p.a.Addr4(), 5000), Dst: netip.AddrPortFrom(ext.Addr4(), 5001), Payload: []byte(strings.Repeat(name, 1600)),
		}.Packet()
		first[name], second[name] = fragments(whole)
	}
	send(t, p.a.NS, first["a"])
	send(t, p.b.NS, first["b"])
	send(t, p.b.NS, second["b"])
	send(t, p.a.NS, second["a"])
	for _, name := range []string{"a", "b"} {
		arrival(t, atExt, "datagram of "+name, marked(strings.Repeat(name, 600)))
	}
	atExt.Never(t, "a mixture", func(pk testenv.Packet) bool {
		return bytes.Contains(pk.Raw, []byte("aaaabbbb")) || bytes.Contains(pk.Raw, []byte("bbbbaaaa"))
	})
}

// fragments cuts an IPv4 packet after 808 bytes of its payload, with one identification.
func fragments(whole []byte) (first, second []byte) {
	const header, cut = 20, 808
	piece := func(payload []byte, flags uint16) []byte {
		p := append(bytes.Clone(whole[:header]), payload...)
		p[2], p[3] = byte(len(p)>>8), byte(len(p))
		p[4], p[5] = 0x77, 0x77
		p[6], p[7] = byte(flags>>8), byte(flags)
		return p
	}
	return piece(whole[header:header+cut], 0x2000), piece(whole[header+cut:], cut/8)
}

// TestTenantThatIsNotRoutedGetsNothing: a reply whose table leads nowhere, or to another tenant, reaches nobody.
func TestTenantThatIsNotRoutedGetsNothing(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	ext, node := p.topo.Ext, p.topo.NodeA
	nl, err := node.NS.Netlink()
	require.NoError(t, err)
	outside := overUDP().serveOn(t, ext.NS, 0)
	link, err := nl.LinkByName(p.b.NodeIf)
	require.NoError(t, err)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		conn := overUDP().connect(t, p.a.NS, testenv.LocalPort(40003), outside.At(ext.Addr(f)))
		conn.SetTimeout(soon)
		atWeb, atB := testenv.CaptureT(t, p.topo.Web.NS, p.topo.Web.If), testenv.CaptureT(t, p.b.NS, p.b.If)
		answer := func(pk testenv.Packet) bool { return pk.Dir == testenv.In && pk.DstPort == 40003 }
		dst := netlink.NewIPNet(p.a.Addr(f).AsSlice())
		route := &netlink.Route{Dst: dst, Table: 100, Scope: netlink.SCOPE_LINK}
		require.NoError(t, nl.RouteDel(route))
		require.Error(t, conn.RoundTrip())
		atWeb.Never(t, "the answer by way of the main table", answer)

		route.LinkIndex = link.Attrs().Index
		require.NoError(t, nl.RouteAdd(route))
		require.Error(t, conn.RoundTrip())
		atB.Never(t, "the answer of the other tenant", answer)
		require.NoError(t, nl.RouteDel(route))
		own, err := nl.LinkByName(p.a.NodeIf)
		require.NoError(t, err)
		route.LinkIndex = own.Attrs().Index
		require.NoError(t, nl.RouteAdd(route))
		require.NoError(t, conn.RoundTrip())
	})
	require.Contains(t, node.NS.Nft(t, "list", "chain", "inet", "natplane_tenants", "to_200"), "of another tenant")
}

// TestTenantsEndWithTheirFlag: the next agent knows no tenants. Nothing of them stays, and their open connections reach nobody.
func TestTenantsEndWithTheirFlag(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	node, ext := p.topo.NodeA, p.topo.Ext
	outside := overUDP().serveOn(t, ext.NS, 0)
	for _, f := range testenv.Families() {
		overUDP().connect(t, p.a.NS, testenv.LocalPort(40004), outside.At(ext.Addr(f)))
	}
	require.NotEmpty(t, flowsTo(t, node, ext.Addr4()))
	p.stop("node-a")
	p.start("node-a", withTenants)
	p.settle()
	require.NotEmpty(t, flowsTo(t, node, ext.Addr4()), "a restart with the same tenants changes nothing")
	p.stop("node-a")
	p.start("node-a")
	p.settle()
	require.NotContains(t, node.NS.Nft(t, "list", "ruleset"), "natplane_tenants")
	nl, err := node.NS.Netlink()
	require.NoError(t, err)
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		rules, err := nl.RuleList(family)
		require.NoError(t, err)
		for _, r := range rules {
			require.NotEqual(t, 800, r.Priority)
		}
	}
	for _, f := range testenv.Families() {
		require.NotContains(t, flowsTo(t, node, ext.Addr(f)), "sport=40004")
	}
}

// TestWithoutTenantsNoPacketIsMarked, and nothing of them exists.
func TestWithoutTenantsNoPacketIsMarked(t *testing.T) {
	t.Parallel()
	p := shardPlane(t)
	node, ext := p.topo.NodeA, p.topo.Ext
	node.NS.NftScript(t, `table inet observer {
	chain forward {
		type filter hook forward priority 0; policy accept;
		meta mark != 0 counter
	}
}`)
	outside := overTCP().serveOn(t, ext.NS, 0)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		require.Equal(t, public(f, 200), overTCP().leavesWith(t, p.topo.DB.NS, outside.At(ext.Addr(f))))
	})
	require.Contains(t, node.NS.Nft(t, "list", "table", "inet", "observer"), "packets 0 bytes 0")
	require.NotContains(t, node.NS.Nft(t, "list", "ruleset"), "natplane_tenants")
}

// TestTenantsBorrowNothing: neither a public address nor the identity of the machine that has their private address.
func TestTenantsBorrowNothing(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	ext := p.topo.Ext
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, last := range []int{10, 200} {
			borrowed := netip.AddrPortFrom(public(f, last), 4000)
			send(t, p.a.NS, testenv.UDPDatagram{Src: borrowed, Dst: netip.AddrPortFrom(ext.Addr(f), 4001), Payload: []byte("borrowed")}.Packet())
		}
		outside := overUDP().serveOn(t, ext.NS, 0)
		require.Equal(t, public(f, 200), overUDP().leavesWith(t, p.a.NS, outside.At(ext.Addr(f))))
	})
	uplink.Never(t, "a borrowed source", func(pk testenv.Packet) bool { return bytes.Contains(pk.Raw, []byte("borrowed")) })
	require.EqualValues(t, 4, p.counterOf("node-a", "a tenant borrows a public address as its source"))
}

// TestCleanupRemovesWhatIsOfTenants as well, and nothing of it beside an agent that works.
func TestCleanupRemovesWhatIsOfTenants(t *testing.T) {
	t.Parallel()
	p := overlappingPlane(t)
	node := p.topo.NodeA
	kernels := map[int]int{netlink.FAMILY_V4: 3, netlink.FAMILY_V6: 2} // local, main and, in IPv4, default
	rules := func(family int) []netlink.Rule {
		nl, err := node.NS.Netlink()
		require.NoError(t, err)
		list, err := nl.RuleList(family)
		require.NoError(t, err)
		return list
	}
	for family, before := range map[int][]netlink.Rule{netlink.FAMILY_V4: rules(netlink.FAMILY_V4), netlink.FAMILY_V6: rules(netlink.FAMILY_V6)} {
		require.Greater(t, len(before), kernels[family])
		_, err := agent.Cleanup(t.Context(), node.NS.FD())
		require.ErrorContains(t, err, "an agent is running on this node")
		require.Equal(t, before, rules(family))
	}
	p.stop("node-a")
	require.Contains(t, node.NS.Nft(t, "list", "ruleset"), "natplane_tenants")
	_, err := agent.Cleanup(t.Context(), node.NS.FD())
	require.NoError(t, err)
	require.NotContains(t, node.NS.Nft(t, "list", "ruleset"), "natplane")
	for family, want := range kernels {
		require.Len(t, rules(family), want)
	}
}
