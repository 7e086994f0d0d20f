// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// rivals takes the public addresses 10 and 11 for the pod and hides whatever leaves the pod range behind the node, at the standard
// priorities.
func rivals() string {
	const grab = `
		ip daddr { 203.0.113.10, 203.0.113.11 } dnat ip to 10.244.1.50
		ip6 daddr { 2001:db8:203::10, 2001:db8:203::11 } dnat ip6 to fd00:10:244:1::50`
	return foreign("type nat hook prerouting priority dstnat"+grab, "type nat hook output priority -100"+grab,
		`type nat hook postrouting priority srcnat
		ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade
		ip6 saddr fd00:10:244::/48 ip6 daddr != fd00:10:244::/48 masquerade`)
}

// TestOurBindingWinsOverThatOfOthers, whoever came first, and others keep what is not ours.
func TestOurBindingWinsOverThatOfOthers(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, db, pod, mail, nodeA, ext := p.topo.Web, p.topo.DB, p.topo.Pod, p.topo.Mail, p.topo.NodeA, p.topo.Ext
	p.serve(web, exposure{name: "list", age: -1, public: dual(11), ports: []corev1.ServicePort{tcpPort("tcp", 443), udpPort("udp", 443)},
		targets: map[string]int32{"tcp": appPort, "udp": appPort}})
	uplink := testenv.CaptureT(t, nodeA.NS, nodeA.Uplink)
	p.eachOrder(t, "node-a", rivals(), func(t *testing.T) {
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			for _, v := range []visit{
				{name: "inwards", from: ext.NS, to: public(f, 10), sees: ext.Addr(f), at: web.Addr(f)},
				{name: "inwards, port", from: ext.NS, to: public(f, 11), port: 443, sees: ext.Addr(f), at: web.Addr(f)},
				{name: "outwards", from: web.NS, to: ext.Addr(f), sees: public(f, 10)},
				{name: "itself", from: web.NS, to: public(f, 10), sees: public(f, 10), at: web.Addr(f)},
				{name: "machine", from: db.NS, to: public(f, 10), sees: public(f, 20), at: web.Addr(f)},
				{name: "other node", from: web.NS, to: public(f, 30), sees: public(f, 10), at: mail.Addr(f)},
				{name: "in the cluster", from: web.NS, to: mail.Addr(f), sees: web.Addr(f), at: mail.Addr(f)},
				{name: "its node", from: nodeA.NS, to: public(f, 10), sees: nodeA.Addr(f), at: web.Addr(f)},
				{name: "neighbour", from: pod.NS, to: ext.Addr(f), sees: nodeA.Addr(f)},
			} {
				v.check(t)
			}
			allRefused(t, visit{name: "not listed", from: ext.NS, to: public(f, 11)},
				visit{name: "not listed, from a machine", from: db.NS, to: public(f, 11)},
				visit{name: "not listed, from the node", from: nodeA.NS, to: public(f, 11)})
			for _, packet := range strays(t, web.Addr(f), ext.Addr(f)) {
				send(t, web.NS, packet)
			}
			uplink.Never(t, "private source", func(pk testenv.Packet) bool {
				return leaving(web.Addr(f), db.Addr(f))(pk) && pk.Dst != mail.Addr(f)
			})
		})
	})
}

// TestPublicAddressesOfNobodyAreSwallowed: of no backend at all, and announced to the wrong node.
func TestPublicAddressesOfNobodyAreSwallowed(t *testing.T) {
	t.Parallel()
	p := nodesPlane(t)
	p.serve(p.topo.Mail, exposure{name: "nobody", public: dual(12), whole: true, backends: []netip.Addr{}})
	p.serve(p.topo.Mail, exposure{name: "mail", public: dual(30), whole: true})
	w := p.wires()
	check := func(t *testing.T) {
		for _, last := range []int{12, 30} {
			eachFamily(t, func(t *testing.T, f testenv.Family) {
				w.requireAllSwallowed(t, strays(t, p.topo.Ext.Addr(f), public(f, last)))
			})
		}
	}
	for _, last := range []int{12, 30} {
		p.announce(last, p.topo.NodeA)
	}
	t.Run("routed", check)
	for _, f := range testenv.Families() {
		for _, last := range []int{12, 30} {
			require.NoError(t, p.topo.NodeA.NS.AddAddr("lo", netip.PrefixFrom(public(f, last), public(f, last).BitLen())))
		}
	}
	p.settle()
	t.Run("the node has the address", check)
}

// requireAllSwallowed is requireSwallowed for many packets of the client to one address.
func (w wires) requireAllSwallowed(t *testing.T, packets [][]byte) {
	t.Helper()
	sent, err := testenv.ParsePacket(packets[0])
	require.NoError(t, err)
	require.NoError(t, w.uplink.Reset())
	for _, packet := range packets {
		send(t, w.p.topo.Ext.NS, packet)
	}
	require.NoError(t, w.uplink.Flush())
	require.Equal(t, len(packets), w.uplink.Count(func(pk testenv.Packet) bool { return concerns(pk, sent) }), "packets on the uplink")
	w.uplink.Never(t, "a packet back", func(pk testenv.Packet) bool { return pk.Dir == testenv.Out && concerns(pk, sent) })
	require.Empty(t, flowsTo(t, w.p.topo.NodeA, sent.Dst))
}

// TestPublicSourcesCannotBeBorrowed by a machine: its own, its neighbour's, one of the other node and one of nobody.
func TestPublicSourcesCannotBeBorrowed(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	p.serve(p.topo.Mail, exposure{name: "nobody", public: dual(40), whole: true, backends: []netip.Addr{}})
	web, ext, pod := p.topo.Web, p.topo.Ext, p.topo.Pod
	uplink, atPod := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink), testenv.CaptureT(t, pod.NS, pod.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, last := range []int{10, 20, 30, 40} {
			for _, dst := range []netip.Addr{ext.Addr(f), pod.Addr(f), p.topo.Mail.Addr(f), public(f, 20), public(f, 30)} {
				for _, packet := range strays(t, public(f, last), dst) {
					send(t, web.NS, packet)
				}
			}
		}
		for _, c := range []*testenv.Capture{uplink, atPod} {
			c.Never(t, "borrowed source", func(pk testenv.Packet) bool {
				return pk.Src == public(f, 10) || pk.Src == public(f, 20) || pk.Src == public(f, 30) || pk.Src == public(f, 40)
			})
		}
		visit{name: "its own source", from: web.NS, to: ext.Addr(f), sees: public(f, 10)}.check(t)
		require.NoError(t, uplink.Reset())
		require.NoError(t, atPod.Reset())
	})
}

// TestAMachineCannotBorrowItsNeighbour: with its private source it would leave with the neighbour's public address.
func TestAMachineCannotBorrowItsNeighbour(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, packet := range strays(t, db.Addr(f), ext.Addr(f)) {
			send(t, web.NS, packet)
		}
		uplink.Never(t, "a packet of web with the identity of db", func(pk testenv.Packet) bool {
			return pk.Src == public(f, 20) || pk.Src == db.Addr(f)
		})
		visit{name: "db itself", from: db.NS, to: ext.Addr(f), sees: public(f, 20)}.check(t)
		require.NoError(t, uplink.Reset())
	})
}

// TestPrivateSourcesFromOutsideAreNotTranslated: a packet that came by the uplink gets nobody's public address.
func TestPrivateSourcesFromOutsideAreNotTranslated(t *testing.T) {
	t.Parallel()
	p := machinesPlane(t)
	web, db, ext, nodeA := p.topo.Web, p.topo.DB, p.topo.Ext, p.topo.NodeA
	uplink, atDB := testenv.CaptureT(t, nodeA.NS, nodeA.Uplink), testenv.CaptureT(t, db.NS, db.If)
	for f, far := range map[testenv.Family]string{testenv.IPv4: "192.0.2.99", testenv.IPv6: "2001:db8:99::99"} {
		t.Run(f.String(), func(t *testing.T) {
			beyond := netip.MustParseAddr(far)
			require.NoError(t, p.topo.Announce(beyond, nodeA)) // as if the way there led through the node
			for i, dst := range []netip.Addr{beyond, public(f, 20), db.Addr(f)} {
				mark := fmt.Sprintf("not from outside %d", i)
				send(t, ext.NS, testenv.UDPDatagram{
					Src: netip.AddrPortFrom(web.Addr(f), 4100), Dst: netip.AddrPortFrom(dst, 9), Payload: []byte(mark),
				}.Packet())
				arrival(t, uplink, mark, marked(mark))
			}
			for _, c := range []*testenv.Capture{uplink, atDB} {
				c.Never(t, "public address of web", func(pk testenv.Packet) bool { return pk.Src == public(f, 10) })
			}
			uplink.Never(t, "private source", leaving(web.Addr(f)))
		})
	}
}

// ftpHelper is how others attach the helper of FTP to what machines dial.
func ftpHelper() string {
	return `table inet others {
		ct helper ftp4 {
			type "ftp" protocol tcp
			l3proto ip
		}
		ct helper ftp6 {
			type "ftp" protocol tcp
			l3proto ip6
		}
		chain c0 {
			type filter hook prerouting priority -150
			meta nfproto ipv4 tcp dport 21 ct helper set "ftp4"
			meta nfproto ipv6 tcp dport 21 ct helper set "ftp6"
		}
	}`
}

// announceFTP lets a machine dial a server on port 21 and tell it of a port of its own (RFC 2428), upon which the helper expects a
// connection to that port.
func announceFTP(t *testing.T, p *plane, from *testenv.Machine, to netip.Addr, port uint16) {
	t.Helper()
	var conn net.Conn
	require.NoError(t, from.NS.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to, 21).String(), patience)
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() }) // nothing depends on it
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	own, kind := from.Addr(testenv.FamilyOf(to)), 1
	if own.Is6() {
		kind = 2
	}
	lines := bufio.NewReader(conn)
	for _, command := range []string{"USER somebody", fmt.Sprintf("EPRT |%d|%s|%d|", kind, own, port)} {
		_, err := fmt.Fprintf(conn, "%s\r\n", command)
		require.NoError(t, err)
		_, err = lines.ReadString('\n')
		require.NoError(t, err)
	}
	testenv.Eventually(t, patience, "the helper expects a connection", func() error {
		for _, family := range []string{"ipv4", "ipv6"} {
			out, err := p.topo.NodeA.NS.Run(t.Context(), "conntrack", "-L", "expect", "-f", family)
			if err != nil {
				return err
			}
			if strings.Contains(out, fmt.Sprintf("dport=%d ", port)) {
				return nil
			}
		}
		return errors.New("no expectation")
	})
}

// TestFieldCase_B98_HelpersOpenNothing that is not listed. A whole address is open, with and without the helper.
func TestFieldCase_B98_HelpersOpenNothing(t *testing.T) {
	t.Parallel()
	testenv.RequireTool(t, "conntrack")
	const announced = 2222
	p := nodesPlane(t)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	p.serve(web, exposure{name: "web", public: dual(10), whole: true})
	p.serve(db, exposure{name: "db", public: dual(20), ports: []corev1.ServicePort{tcpPort("tcp", appPort)}})
	p.topo.NodeA.NS.NftScript(t, ftpHelper())
	overTCP().serveOn(t, ext.NS, 21)
	for _, m := range []*testenv.Machine{web, db} {
		overTCP().serveOn(t, m.NS, announced)
	}
	atDB := testenv.CaptureT(t, db.NS, db.If)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, m := range []*testenv.Machine{db, web} {
			announceFTP(t, p, m, ext.Addr(f), announced)
		}
		testenv.Unreachable(t, "the announced port of db", func() error {
			_, err := testenv.DialTCP(ext.NS, anywhere(), netip.AddrPortFrom(public(f, 20), announced), soon)
			return err
		})
		atDB.Never(t, "an expected connection", func(pk testenv.Packet) bool { return pk.DstPort == announced })
		conn := overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), announced))
		require.Equal(t, ext.Addr(f), conn.SeenByPeer.Addr())
		require.Equal(t, web.Addr(f), conn.PeerLocal.Addr())
	})
}
