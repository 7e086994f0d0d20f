// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// spread has every node translate.
func spread(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
}

// TestClusterPolicyCluster spreads an address over two nodes and reaches it from everywhere. The particulars are with the tests of packets;
// this one shows that the API server's objects lead to them.
func TestClusterPolicyCluster(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	web, mail, pod, ext, nodeA, nodeB := p.topo.Web, p.topo.Mail, p.topo.Pod, p.topo.Ext, p.topo.NodeA, p.topo.NodeB
	p.pod("web", "web", "node-a", web.Addrs...)
	p.pod("mail", "mail", "node-b", mail.Addrs...)
	p.expose("web", 10, spread)
	p.expose("mail", 30)
	for _, node := range []string{"node-a", "node-b"} {
		p.translates(node, 10, &web.Host)
	}
	p.translates("node-b", 30, &mail.Host)
	p.translates("node-a", 30, nil)
	answer(t, web.NS)
	answer(t, mail.NS)

	check := func(t *testing.T, at *testenv.Node, visits func(f testenv.Family) []visit) {
		t.Helper()
		p.announce(10, at)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			for _, v := range visits(f) {
				v.to, v.at = public(f, 10), web.Addr(f)
				v.check(t)
			}
		})
	}
	t.Run("announced to the node of the machine", func(t *testing.T) {
		check(t, nodeA, func(f testenv.Family) []visit {
			return []visit{
				{name: "client", from: ext.NS, sees: ext.Addr(f)},
				{name: "pod of the node", from: pod.NS, sees: pod.Addr(f)},
				{name: "machine of the other node", from: mail.NS, sees: public(f, 30)},
				{name: "the machine itself", from: web.NS, sees: public(f, 10)},
				// Behind a node address: host-network Pods, and Pods of a CNI that masquerades them to it.
				{name: "the other node", from: nodeB.NS, sees: nodeA.Addr(f)},
			}
		})
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			visit{name: "the node itself", from: nodeA.NS, to: public(f, 10), sees: nodeA.Addr(f), at: web.Addr(f)}.check(t)
		})
	})
	t.Run("announced to the other node", func(t *testing.T) {
		check(t, nodeB, func(f testenv.Family) []visit {
			return []visit{
				{name: "client", from: ext.NS, sees: nodeB.Addr(f)},
				{name: "machine of that node", from: mail.NS, sees: nodeB.Addr(f)},
			}
		})
	})
	t.Run("policy Local again", func(t *testing.T) {
		p.kube.ChangeService(t, tenantA, "web", func(s *corev1.Service) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		})
		p.translates("node-b", 10, nil)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			visit{name: "announced to the other node", from: ext.NS, to: public(f, 10)}.refused(t)
		})
		check(t, nodeA, func(f testenv.Family) []visit { return []visit{{name: "client", from: ext.NS, sees: ext.Addr(f)}} })
	})
	for _, name := range []string{"web", "mail"} {
		p.says(tenantA, name, nat.ReasonProgrammed)
	}
	require.EqualValues(t, 1, p.writes["node-b"].Load(), "mail")
}

// TestClusterWordOfAnotherNode: a node translates to a machine of another node as long as the agent there finds its Pod, whatever EndpointSlices
// go on to say.
func TestClusterWordOfAnotherNode(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	db, ext := p.topo.DB, p.topo.Ext
	answer(t, db.NS)
	p.kube.Pod(t, tenantB, "db", "node-a", map[string]string{"app": "db"}, texts(db.Addrs)...)
	p.kube.Service(t, tenantB, "db", "cozy-proxy", bothFamilies, spread, func(s *corev1.Service) { s.Spec.Selector = nil })
	require.NoError(t, p.slice("db", "node-a", texts(db.Addrs[:1])...))
	require.NoError(t, p.slice("db", "node-a", texts(db.Addrs[1:])...))
	p.kube.Assign(t, tenantB, "db", dual(20)...)
	p.announce(20, p.topo.NodeB)
	for _, node := range []string{"node-a", "node-b"} {
		p.translates(node, 20, &db.Host)
	}
	word := p.condition(tenantB, "db", nat.VouchPrefix+"node-a")
	require.NotNil(t, word)
	require.Equal(t, nat.VouchMessage(db.Addrs), word.Message)
	require.Nil(t, p.condition(tenantB, "db", nat.VouchPrefix+"node-b"))
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "client", from: ext.NS, to: public(f, 20), sees: p.topo.NodeB.Addr(f), at: db.Addr(f)}.check(t)
	})

	// Its address may be another tenant's machine's by now.
	p.kube.PodStatus(t, tenantB, "db", corev1.PodSucceeded, false, texts(db.Addrs)...)
	p.translates("node-b", 20, nil)
	p.says(tenantB, "db", nat.ReasonBackendUnverified)
	require.Nil(t, p.condition(tenantB, "db", nat.VouchPrefix+"node-a"))
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "client", from: ext.NS, to: public(f, 20)}.refused(t)
	})
}
