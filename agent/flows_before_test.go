// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// dialling is a connection attempt that the client's kernel repeats by itself.
type dialling struct {
	f    testenv.Family
	port uint16
	done chan error
}

// dialEarly begins to connect from a fixed port to an address that nothing answers yet, and waits for the flow of the attempt.
func (s *stage) dialEarly(t testing.TB, f testenv.Family, dialled netip.AddrPort, port uint16) dialling {
	t.Helper()
	d := dialling{f, port, make(chan error, 1)}
	go func() {
		conn, err := testenv.DialTCP(s.topo.Ext.NS, testenv.LocalPort(port), dialled, patience)
		if err == nil {
			err = conn.Close()
		}
		d.done <- err
	}()
	s.awaitFlow(t, "attempt to connect", func(f conntrack.Flow) bool {
		return f.Protocol == nat.TCP && f.Orig.SrcPort == port && f.Orig.Dst == dialled.Addr()
	})
	return d
}

// awaitFlow waits for a flow of node-a.
func (s *stage) awaitFlow(t testing.TB, what string, match func(conntrack.Flow) bool) conntrack.Flow {
	t.Helper()
	var found conntrack.Flow
	testenv.Eventually(t, patience, "flow of "+what, func() error {
		for _, f := range allFlows(t, s.topo.NodeA.NS) {
			if match(f) {
				found = f
				return nil
			}
		}
		return fmt.Errorf("none")
	})
	return found
}

// untranslated matches the flow that a sender made.
func (s *sender) untranslated(f conntrack.Flow) bool {
	return f.Protocol == nat.UDP && netip.AddrPortFrom(f.Orig.Src, f.Orig.SrcPort) == s.from &&
		netip.AddrPortFrom(f.Orig.Dst, f.Orig.DstPort) == s.to && f.Reply.Src == s.to.Addr() && f.Reply.Dst == s.from.Addr()
}

// TestFieldCase_B45_ClientsThatCameBeforeTheMapping reach the machine with the port that they have kept.
func TestFieldCase_B45_ClientsThatCameBeforeTheMapping(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]exposure{
		"WholeIP":  {name: "web", public: dual(10), whole: true},
		"PortList": {name: "web", public: dual(10), ports: []corev1.ServicePort{tcpPort("tcp", webPort), udpPort("udp", onewayPort)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t)
			p.serve(p.topo.DB, exposure{name: "db", public: dual(20), whole: true})
			s := newStage(t, p, p.topo.Web)
			inside := overTCP().serveOn(t, p.topo.DB.NS, webPort)
			others := map[string]*testenv.Conn{}
			var senders []*sender
			var attempts []dialling
			for _, f := range testenv.Families() {
				others[f.String()] = overTCP().connect(t, p.topo.Ext.NS, anywhere(), inside.At(public(f, 20)))
				source := netip.AddrPortFrom(p.topo.Ext.Addr(f), senderPort)
				sender := sendAlways(t, p.topo.Ext.NS, source, netip.AddrPortFrom(public(f, 10), onewayPort))
				s.awaitFlow(t, "datagrams", sender.untranslated)
				senders = append(senders, sender)
				attempts = append(attempts, s.dialEarly(t, f, netip.AddrPortFrom(public(f, 10), webPort), 40000))
			}
			untouched := keep(t, p.topo.NodeA.NS, others)
			p.serve(p.topo.Web, e)
			for i, f := range testenv.Families() {
				arrival(t, s.at.Capture, "datagram", datagrams(netip.AddrPortFrom(s.machine.Addr(f), onewayPort), senders[i].from.Port()))
				require.NoError(t, <-attempts[i].done, "TCP %s", f)
			}
			untouched.require(t)
		})
	}
}

// TestFieldCase_B47_OwnTrafficThatBeganBeforeTheMapping leaves with the first address of the machine, although neither the ping nor the
// datagrams ever pause or change a port.
func TestFieldCase_B47_OwnTrafficThatBeganBeforeTheMapping(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(*plane){
		"agent runs": func(p *plane) { p.start("node-a"); p.settle() },
		// The kernel tracks connections for somebody else already.
		"agent starts later": func(p *plane) { p.topo.NodeA.NS.NftScript(p.t, somebodysTracking+somebodysTracking6) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := emptyTenant(t)
			before(p)
			s := newStage(t, p, p.topo.Web)
			node, web, ext := p.topo.NodeA.NS, s.machine, p.topo.Ext
			var senders []*sender
			for _, f := range testenv.Families() {
				sender := sendAlways(t, web.NS, netip.AddrPortFrom(web.Addr(f), machinePort), netip.AddrPortFrom(ext.Addr(f), onewayOut))
				s.awaitFlow(t, "datagrams out", sender.untranslated)
				require.NoError(t, pingOut(web, ext, f))
				arrival(t, s.outside, "ping with the private source", from4or6(web.Addr(f), echoID))
				senders = append(senders, sender)
			}
			p.objects.expose(exposure{name: tenantNamespace + "web", public: dual(10), whole: true, node: "node-a", backends: web.Addrs})
			if p.agents["node-a"] == nil {
				p.start("node-a")
			}
			p.settle()
			require.NoError(t, s.outside.Reset())
			for i, f := range testenv.Families() {
				arrival(t, s.outside, "datagram", from(public(f, 10), onewayOut))
				require.NoError(t, pingOut(web, ext, f))
				arrival(t, s.outside, "ping", from4or6(public(f, 10), echoID))
				senders[i].goesOn(t)
				s.outside.Never(t, "packet with a private source", func(pk testenv.Packet) bool { return pk.Src == web.Addr(f) })
				for _, flow := range behind(t, node, web.Addr(f)) {
					require.Equal(t, public(f, 10), flow.Reply.Dst, "%v", flow)
				}
			}
		})
	}
}

// pingOut sends an echo request of one running ping from a machine.
func pingOut(m *testenv.Machine, to *testenv.Host, f testenv.Family) error {
	_, err := testenv.Echo{Dst: to.Addr(f), ID: echoID, Seq: 1, Payload: []byte("ping")}.Ping(m.NS, patience)
	return err
}

func from4or6(src netip.Addr, id uint16) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		return p.Dir == testenv.In && p.Src == src && p.ICMPID == id && (p.ICMPType == 8 || p.ICMPType == 128)
	}
}

// emptyTenant is tenantPlane without an agent.
func emptyTenant(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	p := emptyPlane(t, topology...)
	for k := range p.objects.current.Services {
		p.objects.deleteService(k.String())
	}
	for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB, p.topo.Mail} {
		p.objects.pod(tenantNamespace+m.Name, m.Node.Name, m.Addrs...)
	}
	return p
}

const somebodysTracking6 = `
table ip6 somebody {
	chain forward {
		type filter hook forward priority filter; policy accept;
		ct state established,related accept
	}
}`

// TestUntranslatedLeftoversOfAnAddressGo: flows that use a public address as it is, in either direction, made by hand.
func TestUntranslatedLeftoversOfAnAddressGo(t *testing.T) {
	t.Parallel()
	p := emptyTenant(t)
	node := p.topo.NodeA.NS
	p.objects.expose(exposure{name: tenantNamespace + "web", public: dual(10), whole: true, node: "node-a", backends: p.topo.Web.Addrs})
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		addr, ext := public(f, 10), p.topo.Ext.Addr(f)
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			insert(t, node, plainFlow(protocol, netip.AddrPortFrom(ext, 1), netip.AddrPortFrom(addr, 2)))
			insert(t, node, plainFlow(protocol, netip.AddrPortFrom(addr, 3), netip.AddrPortFrom(ext, 4)))
		}
		require.Len(t, through(t, node, addr), 4)
	})
	p.start("node-a")
	p.settle()
	for _, f := range testenv.Families() {
		require.Empty(t, through(t, node, public(f, 10)))
	}
}

// shard is an egress shard of node-a. Its addresses are write-once, so one with others is another object (UID) of the same name.
func shard(last int) nat.Objects {
	o := nat.NewObjects()
	s := &nat.EgressShard{ObjectMeta: metav1.ObjectMeta{Namespace: "egress", Name: "shard", UID: types.UID(fmt.Sprint(last))}}
	s.Spec.TargetRef = nat.EgressShardTarget{Kind: "Node", Name: "node-a"}
	s.Spec.ShardAddressIPv4, s.Spec.ShardAddressIPv6 = public(testenv.IPv4, last).String(), public(testenv.IPv6, last).String()
	s.Spec.NAT64Prefix = "64:ff9b::/96"
	o.Shards[nat.Key{Namespace: "egress", Name: "shard"}] = s
	return o
}

// TestFieldCase_B62_ShardFlowsAndChanges: a machine that gets its own address keeps what it has open through the shard; a shard that goes or
// gets another address takes its flows along.
func TestFieldCase_B62_ShardFlowsAndChanges(t *testing.T) {
	t.Parallel()
	gone := nat.NewObjects()
	gone.Shards[nat.Key{Namespace: "egress", Name: "shard"}] = nil
	for name, c := range map[string]struct {
		change func(*stage)
		goesOn bool
	}{
		"machine gets its own address": {func(s *stage) {
			s.serve(s.machine, exposure{name: "web", public: dual(10), whole: true})
		}, true},
		"shard made anew with another address": {func(s *stage) {
			for _, f := range testenv.Families() {
				require.NoError(s.t, s.topo.Announce(public(f, 201), s.topo.NodeA))
			}
			s.objects.change(shard(201))
		}, false},
		"shard is deleted": {func(s *stage) { s.objects.change(gone) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := tenantPlane(t, testenv.WithRouterPodRoutes(false))
			p.objects.change(shard(200))
			p.settle()
			s := newStage(t, p, p.topo.Web)
			var both []*conversations
			for _, f := range testenv.Families() {
				both = append(both, s.converseOut(t, f, public(f, 200)))
			}
			keeping := map[testenv.Family]kept{}
			for _, o := range both {
				keeping[o.f] = keep(t, p.topo.NodeA.NS, o.out)
			}
			c.change(s)
			s.settle()
			for _, o := range both {
				if !c.goesOn {
					o.requireOutCut(t)
					require.Empty(t, through(t, p.topo.NodeA.NS, o.public))
					continue
				}
				keeping[o.f].require(t)
				for name, conn := range o.out {
					require.Equal(t, o.public, conn.SeenByPeer.Addr(), name)
				}
				require.Equal(t, public(o.f, 10), overTCP().leavesWith(t, s.machine.NS, s.tcpOut.At(p.topo.Ext.Addr(o.f))))
			}
		})
	}
}
