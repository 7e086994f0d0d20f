// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/natplane/natplane/testenv"
)

// rank lists the machine's address on two nodes, as in a live migration, ready on one of them.
func (p *plane) rank(m *testenv.Machine, service, other, readyOn string) {
	p.t.Helper()
	for _, suffix := range []string{"-ipv4", "-ipv6"} {
		p.objects.editSlice(tenantNamespace+service+suffix, func(s *discoveryv1.EndpointSlice) {
			here := s.Endpoints[0]
			s.Endpoints = nil
			for _, node := range []string{m.Node.Name, other} {
				is := node == readyOn
				here.NodeName, here.Conditions = &node, discoveryv1.EndpointConditions{Ready: &is, Serving: &is}
				s.Endpoints = append(s.Endpoints, here)
			}
		})
	}
	p.settle()
}

// TestMachineOutrankedByItsCopyIsKeptIn: readiness moves to the other node before the machine does. It was heard of from its private address
// then, and its peers reset what it had open. Kept in, it retransmits until a node translates for it again.
func TestMachineOutrankedByItsCopyIsKeptIn(t *testing.T) {
	t.Parallel()
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{
		corev1.ServiceExternalTrafficPolicyLocal, corev1.ServiceExternalTrafficPolicyCluster,
	} {
		t.Run(string(policy), func(t *testing.T) {
			p := tenantPlane(t)
			web, ext := p.topo.Web, p.topo.Ext
			p.serve(web, exposure{name: "web", public: dual(10), whole: true, policy: policy})
			p.rank(web, "web", "node-b", "node-a")
			answer(t, web.NS)
			answer(t, ext.NS)
			uplink := testenv.CaptureT(t, p.topo.NodeA.NS, p.topo.NodeA.Uplink)
			var conns []*testenv.Conn
			for _, f := range testenv.Families() {
				conns = append(conns,
					overTCP().connect(t, web.NS, anywhere(), netip.AddrPortFrom(ext.Addr(f), appPort)),
					overTCP().connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort)))
			}

			p.rank(web, "web", "node-b", "node-b")
			for _, conn := range conns {
				conn.SetTimeout(soon)
				require.Error(t, conn.RoundTrip(), "not translated here")
			}
			for _, f := range testenv.Families() {
				visit{name: "new connection", from: web.NS, to: ext.Addr(f)}.refused(t)
			}

			p.rank(web, "web", "node-b", "node-a")
			for _, conn := range conns {
				conn.SetTimeout(patience)
				require.NoError(t, conn.RoundTrip(), "goes on")
			}
			uplink.Never(t, "private source", leaving(web.Addr4(), web.Addr6()))
		})
	}
}
