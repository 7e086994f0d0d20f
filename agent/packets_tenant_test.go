// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// tenantNamespace holds the Pods and Services of tenantPlane.
const tenantNamespace = "tenant/"

// soon is how long a test waits for an answer that must not come; that nothing came is shown by captures, not by this time.
const soon = 300 * time.Millisecond

// clientIf is the interface of the clients and of the machines.
const clientIf = "eth0"

// anywhere lets the kernel choose the local address and port.
func anywhere() netip.AddrPort { return netip.AddrPort{} }

// tenantPlane has the sample nodes, a Pod for each machine, and no Service: a test says what is exposed. The agent of node-a runs.
func tenantPlane(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	p := emptyPlane(t, topology...)
	for k := range p.objects.current.Services {
		p.objects.deleteService(k.String())
	}
	for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB, p.topo.Mail} {
		p.objects.pod(tenantNamespace+m.Name, m.Node.Name, m.Addrs...)
	}
	p.start("node-a")
	p.settle()
	return p
}

// serve exposes a machine, of which the exposure need not speak, and waits until that is programmed.
func (p *plane) serve(m *testenv.Machine, e exposure) {
	p.t.Helper()
	e.name, e.node = tenantNamespace+e.name, m.Node.Name
	if e.backends == nil {
		e.backends = m.Addrs
	}
	p.objects.expose(e)
	p.settle()
}

// edit changes a Service of the tenant and waits until that is programmed.
func (p *plane) edit(service string, change func(*corev1.Service)) {
	p.t.Helper()
	p.objects.editService(tenantNamespace+service, change)
	p.settle()
}

// annotate sets or, with "", removes an annotation.
func annotate(name, value string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		delete(s.Annotations, name)
		if value != "" {
			s.Annotations[name] = value
		}
	}
}

// public is a documentation address by its last part; testenv's router sends 10, 11, 20 and 200 to node-a and 30 to node-b.
func public(f testenv.Family, last int) netip.Addr {
	if f == testenv.IPv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:203::%d", last))
	}
	return netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", last))
}

// dual lists public addresses in both families, as an exposure wants them.
func dual(last ...int) []string {
	var list []string
	for _, n := range last {
		list = append(list, public(testenv.IPv4, n).String(), public(testenv.IPv6, n).String())
	}
	return list
}

// eachFamily runs the subtests "IPv4" and "IPv6".
func eachFamily(t *testing.T, run func(*testing.T, testenv.Family)) {
	t.Helper()
	for _, f := range testenv.Families() {
		t.Run(f.String(), func(t *testing.T) { run(t, f) })
	}
}

// transport is TCP or UDP.
type transport struct {
	name   string
	listen func(testing.TB, *testenv.NetNS, netip.AddrPort) *testenv.Server
	dial   func(*testenv.NetNS, netip.AddrPort, netip.AddrPort, time.Duration) (*testenv.Conn, error)
}

func overTCP() transport { return transport{"TCP", testenv.ListenTCP, testenv.DialTCP} }
func overUDP() transport { return transport{"UDP", testenv.ListenUDP, testenv.DialUDP} }

// serveOn listens on a port of both families; 0 takes a free one.
func (tr transport) serveOn(t testing.TB, ns *testenv.NetNS, port uint16) *testenv.Server {
	t.Helper()
	return tr.listen(t, ns, netip.AddrPortFrom(netip.IPv6Unspecified(), port))
}

// connect dials and has its first round trip; the answer came from the address that was dialled.
func (tr transport) connect(t testing.TB, ns *testenv.NetNS, local, remote netip.AddrPort) *testenv.Conn {
	t.Helper()
	conn, err := tr.dial(ns, local, remote, patience)
	require.NoError(t, err, "%s to %s", tr.name, remote)
	t.Cleanup(func() { _ = conn.Close() }) // the other end or the namespace may be gone
	return conn
}

// leavesWith connects from a machine and says which source the server saw.
func (tr transport) leavesWith(t testing.TB, ns *testenv.NetNS, remote netip.AddrPort) netip.Addr {
	t.Helper()
	conn := tr.connect(t, ns, anywhere(), remote)
	require.NoError(t, conn.Close())
	return conn.SeenByPeer.Addr()
}

// arrival waits for a packet that has to come.
func arrival(t testing.TB, c *testenv.Capture, what string, match func(testenv.Packet) bool) testenv.Packet {
	t.Helper()
	got, ok := c.WaitFor(patience, match)
	if !ok {
		var seen []string
		for _, p := range c.Packets() {
			seen = append(seen, p.String())
		}
		require.Fail(t, "did not come: "+what, "seen:\n%s", strings.Join(seen, "\n"))
	}
	return got
}

// marked matches what came in with a payload that no other packet has.
func marked(mark string) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool { return p.Dir == testenv.In && bytes.Contains(p.Raw, []byte(mark)) }
}

// send sends a raw packet from a namespace.
func send(t testing.TB, ns *testenv.NetNS, packet []byte) {
	t.Helper()
	require.NoError(t, testenv.SendIP(ns, packet))
}

// flowsTo lists the conntrack entries of a node that began as packets to an address.
func flowsTo(t testing.TB, node *testenv.Node, dialled netip.Addr) string {
	t.Helper()
	testenv.RequireTool(t, "conntrack")
	family := "ipv4"
	if dialled.Is6() {
		family = "ipv6"
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := node.NS.Run(ctx, "conntrack", "-L", "-f", family, "-d", dialled.String())
	require.NoError(t, err)
	var flows []string
	for line := range strings.Lines(out) {
		if strings.Contains(line, "dst=") { // not the summary
			flows = append(flows, line)
		}
	}
	return strings.Join(flows, "")
}

// deleteSlices takes the slices of a Service away, as when its last Pod goes.
func (o *objects) deleteSlices(service string) {
	batch := nat.NewObjects()
	for _, f := range testenv.Families() {
		batch.Slices[key(service+"-"+sliceSuffix(f))] = nil
	}
	o.change(batch)
}
