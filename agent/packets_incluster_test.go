// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// clusterIP is a service address of the sample cluster, which some other software translates.
func clusterIP(f testenv.Family) netip.Addr {
	return map[testenv.Family]netip.Addr{
		testenv.IPv4: netip.MustParseAddr("10.96.0.10"), testenv.IPv6: netip.MustParseAddr("fd00:10:96::10"),
	}[f]
}

// TestMachinesSeeEachOthersPublicAddresses: whoever is dialled by a public address sees the public address of the caller (R9).
func TestMachinesSeeEachOthersPublicAddresses(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, db, mail := p.topo.Web, p.topo.DB, p.topo.Mail
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, v := range []visit{
			{name: "itself", from: web.NS, to: public(f, 10), sees: public(f, 10), at: web.Addr(f)},
			{name: "same node", from: web.NS, to: public(f, 20), sees: public(f, 10), at: db.Addr(f)},
			{name: "same node, back", from: db.NS, to: public(f, 10), sees: public(f, 20), at: web.Addr(f)},
			{name: "other node", from: web.NS, to: public(f, 30), sees: public(f, 10), at: mail.Addr(f)},
			{name: "from the other node", from: mail.NS, to: public(f, 20), sees: public(f, 30), at: db.Addr(f)},
		} {
			v.check(t)
			_, err := testenv.Ping(v.from, netip.Addr{}, v.to, patience)
			require.NoError(t, err, v.name)
		}
		uplink.Never(t, "private source", leaving(web.Addr(f), db.Addr(f)))
	})
}

// TestFieldCase_B20_PortListMachineDialsTheOtherNode: what merely leaves the node is not translated by what the node lists.
func TestFieldCase_B20_PortListMachineDialsTheOtherNode(t *testing.T) {
	t.Parallel()
	p := nodesPlane(t)
	web, mail := p.topo.Web, p.topo.Mail
	p.serve(web, exposure{name: "web", public: dual(10), ports: []corev1.ServicePort{tcpPort("ssh", 22)}})
	p.serve(mail, exposure{name: "mail", public: dual(30), ports: []corev1.ServicePort{tcpPort("tcp", 443), udpPort("udp", 443)},
		targets: map[string]int32{"tcp": appPort, "udp": appPort}})
	answer(t, mail.NS)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{from: web.NS, to: public(f, 30), port: 443, sees: public(f, 10), at: mail.Addr(f)}.check(t)
		listed := p.topo.NodeA.NS.Nft(t, "list", "map", "inet", "natplane", "port"+f.String()[3:])
		require.NotContains(t, listed, public(f, 30).String(), "node-a translates for backends on itself")
	})
}

// TestFieldCase_B20_PortListMachineDialsItself by its own address, and another of the node.
func TestFieldCase_B20_PortListMachineDialsItself(t *testing.T) {
	t.Parallel()
	p := nodesPlane(t)
	web, db := p.topo.Web, p.topo.DB
	ports := []corev1.ServicePort{tcpPort("tcp", 443), udpPort("udp", 443)}
	targets := map[string]int32{"tcp": appPort, "udp": appPort}
	p.serve(web, exposure{name: "web", public: dual(10), ports: ports, targets: targets})
	p.serve(db, exposure{name: "db", public: dual(20), ports: ports, targets: targets})
	answer(t, web.NS)
	answer(t, db.NS)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "itself", from: web.NS, to: public(f, 10), port: 443, sees: public(f, 10), at: web.Addr(f)}.check(t)
		visit{name: "other", from: web.NS, to: public(f, 20), port: 443, sees: public(f, 10), at: db.Addr(f)}.check(t)
		allRefused(t, visit{name: "not listed", from: web.NS, to: public(f, 20)},
			visit{name: "not listed, itself", from: web.NS, to: public(f, 10)})
	})
}

// TestFieldCase_B24_InClusterDestinationsSeeThePrivateAddress: machines and nodes by the addresses of the cluster.
func TestFieldCase_B24_InClusterDestinationsSeeThePrivateAddress(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web := p.topo.Web
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, h := range p.hosts() {
			if h == p.topo.Ext || h == &web.Host {
				continue
			}
			visit{name: h.Name, from: web.NS, to: h.Addr(f), sees: web.Addr(f), at: h.Addr(f)}.check(t)
			_, err := testenv.Ping(web.NS, netip.Addr{}, h.Addr(f), patience)
			require.NoError(t, err, h.Name)
		}
	})
}

// toClusterIP is what kube-proxy does for a ClusterIP, in short.
func toClusterIP(backend4, backend6 netip.Addr) string {
	return foreign(fmt.Sprintf(`type nat hook prerouting priority dstnat
		ip daddr %s dnat ip to %s
		ip6 daddr %s dnat ip6 to %s`, clusterIP(testenv.IPv4), backend4, clusterIP(testenv.IPv6), backend6))
}

func TestFieldCase_B24_ClusterIPSeesThePrivateAddress(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web := p.topo.Web
	// The last one is outside of the cluster: whoever sends it there says with which source.
	for _, backend := range []*testenv.Host{&p.topo.Pod.Host, &p.topo.DB.Host, &p.topo.Mail.Host, p.topo.Ext} {
		p.eachOrder(t, "node-a", toClusterIP(backend.Addr4(), backend.Addr6()), func(t *testing.T) {
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				visit{name: backend.Name, from: web.NS, to: clusterIP(f), sees: web.Addr(f), at: backend.Addr(f)}.check(t)
			})
		})
	}
}

// TestFieldCase_B24_ProbesAndNodePortsAreAnsweredPrivately: who comes to the private address never sees the public one.
func TestFieldCase_B24_ProbesAndNodePortsAreAnsweredPrivately(t *testing.T) {
	t.Parallel()
	const nodePort = 30080
	p := machinesPlane(t)
	web, nodeA, nodeB, ext := p.topo.Web, p.topo.NodeA, p.topo.NodeB, p.topo.Ext
	toWeb := fmt.Sprintf(`type nat hook prerouting priority dstnat
		ip daddr { 198.51.100.1, 198.51.100.2 } meta l4proto { tcp, udp } th dport %[1]d dnat ip to %[2]s:%[4]d
		ip6 daddr { 2001:db8:100::1, 2001:db8:100::2 } meta l4proto { tcp, udp } th dport %[1]d dnat ip6 to [%[3]s]:%[4]d`,
		nodePort, web.Addr4(), web.Addr6(), appPort)
	nodeB.NS.NftScript(t, foreign(toWeb, fmt.Sprintf(`type nat hook postrouting priority srcnat
		ct status dnat ip daddr %s masquerade
		ct status dnat ip6 daddr %s masquerade`, web.Addr4(), web.Addr6())))
	atExt, uplink := testenv.CaptureT(t, ext.NS, clientIf), testenv.CaptureT(t, nodeA.NS, nodeA.Uplink)
	p.eachOrder(t, "node-a", foreign(toWeb), func(t *testing.T) {
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			for _, v := range []visit{
				{name: "probe", from: nodeA.NS, to: web.Addr(f), sees: nodeA.Addr(f)},
				{name: "probe from the other node", from: nodeB.NS, to: web.Addr(f), sees: nodeB.Addr(f)},
				{name: "NodePort, policy Local", from: ext.NS, to: nodeA.Addr(f), port: nodePort, sees: ext.Addr(f)},
				{name: "NodePort of the other node", from: ext.NS, to: nodeB.Addr(f), port: nodePort, sees: nodeB.Addr(f)},
			} {
				v.at = web.Addr(f)
				v.check(t)
			}
			for _, c := range []*testenv.Capture{atExt, uplink} {
				c.Never(t, "public address", func(pk testenv.Packet) bool { return pk.Src == public(f, 10) })
			}
		})
	})
}

// TestFieldCase_B21_PodReachesAPublicAddressOfItsNode, and sees the answer come from there, wherever the two are plugged in. With
// bridge-nf-call-iptables the bridge itself translates, as on every node that has kube-proxy's settings.
func TestFieldCase_B21_PodReachesAPublicAddressOfItsNode(t *testing.T) {
	t.Parallel()
	pods := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"), netip.MustParsePrefix("fd00:10:244:1::/64")}
	for _, layout := range []struct {
		name       string
		option     testenv.Option
		bridge     string // of bridge-nf-call-iptables, if there is a bridge
		masquerade []netip.Prefix
	}{
		{"routed", testenv.WithRPFilter("0"), "", nil},
		{"behind one bridge", testenv.WithBridge(), "0", nil},
		{"behind one bridge that translates", testenv.WithBridge(), "1", nil},
		// The answer would take the short way: only a masquerade brings it back to the node.
		{"on one link", testenv.WithOnLinkBridge(), "0", pods},
		{"on one link that translates", testenv.WithOnLinkBridge(), "1", pods},
	} {
		t.Run(layout.name, func(t *testing.T) {
			t.Parallel()
			p := machinesPlane(t, layout.option)
			if layout.bridge != "" {
				likeKubeProxy(t, p.topo.NodeA.NS, layout.bridge, "va0")
			}
			p.restart("node-a", func() {}, func(o *agent.Options) { o.Policy.MasqueradeCIDRs = layout.masquerade })
			eachFamily(t, func(t *testing.T, f testenv.Family) { p.reachWeb(t, f, layout.masquerade != nil) })
			p.edit("db", annotate(nat.AnnotationPrimary, "false"))
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				seen := p.topo.DB.Addr(f)
				if layout.masquerade != nil {
					seen = p.topo.NodeA.Addr(f)
				}
				visit{name: "without primary", from: p.topo.DB.NS, to: public(f, 10), sees: seen, at: p.topo.Web.Addr(f)}.check(t)
			})
		})
	}
}

// likeKubeProxy says whether the bridges of a node translate, and lets the bridge send a frame back where it came from, as the
// bridge plugin of CNI does for machines that dial themselves.
func likeKubeProxy(t *testing.T, node *testenv.NetNS, translate, port string) {
	t.Helper()
	for _, name := range []string{"iptables", "ip6tables"} {
		require.NoError(t, node.Sysctl("net/bridge/bridge-nf-call-"+name, translate))
	}
	nl, err := node.Netlink()
	require.NoError(t, err)
	link, err := nl.LinkByName(port)
	require.NoError(t, err)
	require.NoError(t, nl.LinkSetHairpin(link, true))
}

// reachWeb dials the whole address of web from the pod, from db and from web itself.
func (p *plane) reachWeb(t *testing.T, f testenv.Family, masquerade bool) {
	web, db, pod := p.topo.Web, p.topo.DB, p.topo.Pod
	seen := pod.Addr(f)
	if masquerade {
		seen = p.topo.NodeA.Addr(f)
	}
	visit{name: "pod", from: pod.NS, to: public(f, 10), sees: seen, at: web.Addr(f)}.check(t)
	visit{name: "machine", from: db.NS, to: public(f, 10), sees: public(f, 20), at: web.Addr(f)}.check(t)
	visit{name: "itself", from: web.NS, to: public(f, 10), sees: public(f, 10), at: web.Addr(f)}.check(t)
}

// TestFieldCase_B41_NodeProcessesReachMachines, never a process of the node, even when the node itself has the public address, as
// announcers may want it.
func TestFieldCase_B41_NodeProcessesReachMachines(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, mail, nodeA, nodeB := p.topo.Web, p.topo.Mail, p.topo.NodeA, p.topo.NodeB
	const nodeOnly = 2222 // nobody serves it but the nodes
	for _, n := range []*testenv.Node{nodeA, nodeB} {
		overTCP().serveOn(t, n.NS, nodeOnly)
		overUDP().serveOn(t, n.NS, nodeOnly)
	}
	check := func(t *testing.T) {
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			visit{name: "local", from: nodeA.NS, to: public(f, 10), sees: nodeA.Addr(f), at: web.Addr(f)}.check(t)
			visit{name: "elsewhere", from: nodeA.NS, to: public(f, 30), sees: nodeB.Addr(f), at: mail.Addr(f)}.check(t)
			visit{name: "from the other node", from: nodeB.NS, to: public(f, 10), sees: nodeA.Addr(f), at: web.Addr(f)}.check(t)
			allRefused(t, visit{name: "a port of the node", from: nodeA.NS, to: public(f, 10), port: nodeOnly},
				visit{name: "a port of the other node", from: nodeA.NS, to: public(f, 30), port: nodeOnly})
		})
	}
	t.Run("whole", check)
	ports := []corev1.ServicePort{tcpPort("tcp", appPort), udpPort("udp", appPort)}
	p.serve(web, exposure{name: "web", public: dual(10), ports: ports})
	p.serve(mail, exposure{name: "mail", public: dual(30), ports: ports})
	t.Run("ports", check)
	for _, f := range testenv.Families() { // as some announcers do
		addr := public(f, 10)
		require.NoError(t, nodeA.NS.AddAddr("lo", netip.PrefixFrom(addr, addr.BitLen())))
	}
	p.settle()
	t.Run("the node has the address too", func(t *testing.T) {
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			var closed []visit
			for _, ns := range []*testenv.NetNS{nodeA.NS, nodeB.NS, p.topo.Ext.NS, p.topo.Pod.NS} {
				closed = append(closed, visit{name: "a port of the node, from " + ns.Name(), from: ns, to: public(f, 10), port: nodeOnly})
			}
			allRefused(t, closed...)
			visit{name: "client", from: p.topo.Ext.NS, to: public(f, 10), sees: p.topo.Ext.Addr(f), at: web.Addr(f)}.check(t)
			visit{name: "neighbour", from: p.topo.Pod.NS, to: public(f, 10), sees: p.topo.Pod.Addr(f), at: web.Addr(f)}.check(t)
			// The kernel's own choice for a masquerade would be the first address of lo: a machine's identity for a node.
			visit{name: "the other node", from: nodeB.NS, to: public(f, 10), sees: nodeA.Addr(f), at: web.Addr(f)}.check(t)
			// A process that dials an address of its own node has that address (RFC 6724, 5, rule 1).
			visit{name: "the node", from: nodeA.NS, to: public(f, 10), sees: public(f, 10), at: web.Addr(f)}.check(t)
		})
	})
}

// TestFieldCase_B30_AddressesOfTheOtherNodeAreLeftAlone: what a neighbour or a process of the node dials leaves the node as it is.
func TestFieldCase_B30_AddressesOfTheOtherNodeAreLeftAlone(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	p.serve(p.topo.Mail, exposure{name: "nobody", public: dual(40), whole: true, backends: []netip.Addr{}})
	mail, pod, nodeA := p.topo.Mail, p.topo.Pod, p.topo.NodeA
	atRouter := testenv.CaptureT(t, p.topo.Router.NS, nodeA.Name)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "pod", from: pod.NS, to: public(f, 30), sees: pod.Addr(f), at: mail.Addr(f)}.check(t)
		for _, last := range []int{30, 40} { // of a machine on the other node, and of nobody
			for i, src := range []struct {
				ns   *testenv.NetNS
				addr netip.Addr
			}{{pod.NS, pod.Addr(f)}, {nodeA.NS, nodeA.Addr(f)}} {
				mark := fmt.Sprintf("left alone %d %d %s", last, i, f)
				send(t, src.ns, testenv.UDPDatagram{Src: netip.AddrPortFrom(src.addr, 4000), Dst: netip.AddrPortFrom(public(f, last), 9), Payload: []byte(mark)}.Packet())
				got := arrival(t, atRouter, mark, marked(mark))
				require.Equal(t, []netip.Addr{src.addr, public(f, last)}, []netip.Addr{got.Src, got.Dst})
			}
		}
	})
}

// TestFieldCase_B25_RepliesKeepTheirAddressBesideAShard: neither replies nor what stays in the cluster are the shard's.
func TestFieldCase_B25_RepliesKeepTheirAddressBesideAShard(t *testing.T) {
	t.Parallel()
	p := nodesPlane(t)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	ports := []corev1.ServicePort{tcpPort("tcp", 443), udpPort("udp", 443)}
	p.serve(web, exposure{name: "web", public: dual(11), primary: "false", ports: ports})
	shard := &nat.EgressShard{Spec: nat.EgressShardSpec{
		TargetRef:        nat.EgressShardTarget{Kind: "Node", Name: "node-a"},
		ShardAddressIPv4: public(testenv.IPv4, 200).String(), ShardAddressIPv6: public(testenv.IPv6, 200).String(),
	}}
	shard.Namespace, shard.Name = "tenant", "shard"
	batch := nat.NewObjects()
	batch.Shards[key("tenant/shard")] = shard
	p.objects.change(batch)
	p.settle()
	overTCP().serveOn(t, web.NS, 443)
	overUDP().serveOn(t, web.NS, 443)
	answer(t, db.NS)
	answer(t, ext.NS)
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "outwards", from: web.NS, to: ext.Addr(f), sees: public(f, 200)}.check(t)
		require.NoError(t, uplink.Reset())
		visit{name: "inwards", from: ext.NS, to: public(f, 11), port: 443, sees: ext.Addr(f), at: web.Addr(f)}.check(t)
		visit{name: "in the cluster", from: web.NS, to: db.Addr(f), sees: web.Addr(f), at: db.Addr(f)}.check(t)
		uplink.Never(t, "address of the shard", leaving(public(f, 200)))
	})
}
