// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// appPort is where the servers of these tests listen, in TCP and UDP.
const appPort = 8080

// nodesPlane is tenantPlane with an agent on each node.
func nodesPlane(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	p := tenantPlane(t, topology...)
	p.start("node-b")
	p.settle()
	return p
}

// machinesPlane also gives each machine a whole address: web 10, db 20, both on node-a, and mail 30 on node-b. All of them, the
// pod, the nodes and the client ext answer on appPort.
func machinesPlane(t testing.TB, topology ...testenv.Option) *plane {
	t.Helper()
	p := nodesPlane(t, topology...)
	p.serve(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	p.serve(p.topo.DB, exposure{name: "db", public: dual(20), whole: true})
	p.serve(p.topo.Mail, exposure{name: "mail", public: dual(30), whole: true})
	for _, h := range p.hosts() {
		answer(t, h.NS)
	}
	return p
}

func (p *plane) hosts() []*testenv.Host {
	return []*testenv.Host{
		&p.topo.Web.Host, &p.topo.DB.Host, &p.topo.Pod.Host, &p.topo.Mail.Host,
		&p.topo.NodeA.Host, &p.topo.NodeB.Host, p.topo.Ext,
	}
}

// answer serves appPort over TCP and UDP.
func answer(t testing.TB, ns *testenv.NetNS) {
	t.Helper()
	overTCP().serveOn(t, ns, appPort)
	overUDP().serveOn(t, ns, appPort)
}

// restart ends the agent of a node with its table, does something, and starts a new agent with edited options.
func (p *plane) restart(name string, between func(), edits ...func(*agent.Options)) {
	p.t.Helper()
	p.stop(name)
	p.node(name).NS.Nft(p.t, "delete", "table", "inet", "natplane")
	between()
	p.start(name, edits...)
	p.settle()
}

// eachOrder runs a test of the rules of others, which are there before the agent's table or come after it.
func (p *plane) eachOrder(t *testing.T, node, script string, run func(t *testing.T)) {
	t.Helper()
	ns := p.node(node).NS
	load := func() { ns.NftScript(t, script) }
	for _, order := range []struct {
		name string
		load func()
	}{
		{"others first", func() { p.restart(node, load) }},
		{"others last", func() { p.restart(node, func() {}); load() }},
	} {
		order.load()
		t.Run(order.name, run)
		ns.Nft(t, "delete", "table", "inet", "others")
	}
}

// foreign is a table of other software with one chain for each text, which begins with the hook.
func foreign(chains ...string) string {
	script := "table inet others {\n"
	for i, c := range chains {
		script += fmt.Sprintf("chain c%d {\n%s\n}\n", i, c)
	}
	return script + "}\n"
}

// visit is a connection over TCP and one over UDP, and what the peer must see of both.
type visit struct {
	name string
	from *testenv.NetNS
	to   netip.Addr
	// sees is the caller's address for the peer, at the address that the peer was reached by.
	sees, at netip.Addr
	port     uint16 // appPort when zero
}

func (v visit) check(t *testing.T) {
	t.Helper()
	if v.port == 0 {
		v.port = appPort
	}
	for _, tr := range []transport{overTCP(), overUDP()} {
		conn := tr.connect(t, v.from, anywhere(), netip.AddrPortFrom(v.to, v.port))
		require.NoError(t, conn.RoundTrip(), "%s, %s", v.name, tr.name)
		require.Equal(t, v.sees, conn.SeenByPeer.Addr(), "%s, %s: the peer sees", v.name, tr.name)
		if v.at.IsValid() {
			require.Equal(t, v.at, conn.PeerLocal.Addr(), "%s, %s: the peer is", v.name, tr.name)
		}
		require.NoError(t, conn.Close())
	}
}

// refused is a visit that must fail in TCP and UDP.
func (v visit) refused(t *testing.T) {
	t.Helper()
	allRefused(t, v)
}

// allRefused makes all visits at once, since each has to wait for an answer that does not come.
func allRefused(t *testing.T, visits ...visit) {
	t.Helper()
	transports := []transport{overTCP(), overUDP()}
	errs := make([]error, len(visits)*len(transports))
	var dials sync.WaitGroup
	for i := range errs {
		v, tr := visits[i/len(transports)], transports[i%len(transports)]
		if v.port == 0 {
			v.port = appPort
		}
		dials.Go(func() {
			var conn *testenv.Conn
			if conn, errs[i] = tr.dial(v.from, anywhere(), netip.AddrPortFrom(v.to, v.port), soon); errs[i] == nil {
				_ = conn.Close() // the test fails anyway
			}
		})
	}
	dials.Wait()
	for i, err := range errs {
		what := visits[i/len(transports)].name + ", " + transports[i%len(transports)].name
		testenv.Unreachable(t, what, func() error { return err })
	}
}

// leaving matches what leaves an interface with a source.
func leaving(src ...netip.Addr) func(testenv.Packet) bool {
	return func(p testenv.Packet) bool {
		for _, a := range src {
			if p.Dir == testenv.Out && p.Src == a {
				return true
			}
		}
		return false
	}
}
