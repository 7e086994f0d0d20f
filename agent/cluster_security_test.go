// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// slice makes an EndpointSlice by hand, as an author of Services may.
func (p *clusterPlane) slice(service, node string, addrs ...string) error {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: service + "-", Namespace: tenantB, Labels: map[string]string{
			discoveryv1.LabelServiceName: service, nat.LabelProxyName: "cozy-proxy", discoveryv1.LabelManagedBy: "me",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, a := range addrs {
		if addr, err := netip.ParseAddr(a); err != nil {
			s.AddressType = discoveryv1.AddressTypeFQDN
		} else if addr.Is6() {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		e := discoveryv1.Endpoint{Addresses: []string{a}}
		if node != "" {
			e.NodeName = &node
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	_, err := p.kube.Discovery.EndpointSlices(tenantB).Create(context.Background(), s, metav1.CreateOptions{})
	return err
}

// TestClusterAuthorsObtainNothingOfOthers: whatever the author of a Service writes that the API server admits, the machines, nodes and
// addresses of others stay theirs, and the author reads why.
func TestClusterAuthorsObtainNothingOfOthers(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	web, db, mail := p.topo.Web, p.topo.DB, p.topo.Mail
	p.pod("web", "web", "node-a", web.Addrs...)
	p.pod("mail", "mail", "node-b", mail.Addrs...)
	p.expose("web", 10)
	p.translates("node-a", 10, &web.Host)
	answer(t, web.NS)
	answer(t, p.topo.NodeA.NS)
	// The author's own machine.
	p.kube.Pod(t, tenantB, "db", "node-a", map[string]string{"app": "db"}, texts(db.Addrs)...)
	age(t) // the Services of the author are younger

	before := elements(t, p.topo.NodeA.NS)
	for _, c := range []struct {
		name string
		// public are the addresses that the Service gets, with db behind it, or by hand-written slices whatever they list.
		public []string
		node   string // of the slices
		slices [][]string
		reason nat.Reason
		says   string
		edit   func(*corev1.Service)
	}{
		{name: "machine-of-another", public: dual(11), node: "node-a", slices: [][]string{texts(web.Addrs[:1]), texts(web.Addrs[1:])},
			reason: nat.ReasonBackendUnverified, says: "no running Pod of namespace tenant-b on node node-a has this address"},
		{name: "machine-of-another-elsewhere", public: dual(11), node: "node-b", slices: [][]string{texts(mail.Addrs[:1]), texts(mail.Addrs[1:])},
			reason: nat.ReasonBackendUnverified, says: "no running Pod of namespace tenant-b on node node-b has this address"},
		{name: "machine-of-another-by-all-nodes", public: dual(11), node: "node-b", slices: [][]string{texts(mail.Addrs[:1]), texts(mail.Addrs[1:])},
			reason: nat.ReasonBackendUnverified, says: "no running Pod of namespace tenant-b on node node-b has this address", edit: spread},
		{name: "unlikely-machine-by-all-nodes", public: dual(11), node: "node-b", slices: [][]string{{"10.244.2.99"}, {"fd00:10:244:2::99"}},
			reason: nat.ReasonBackendUnverified, says: "no running Pod", edit: spread},
		{name: "machine-without-a-node", public: dual(11), slices: [][]string{texts(web.Addrs[:1])},
			reason: nat.ReasonBackendUnverified, says: "names no node"},
		{name: "node-as-a-machine", public: dual(11), node: "node-a", slices: [][]string{{p.topo.NodeA.Addr4().String()}, {p.topo.NodeA.Addr6().String()}},
			reason: nat.ReasonBackendUnverified, says: "is an address of node node-a"},
		{name: "unlikely-machines", public: dual(11), node: "node-a", slices: [][]string{{"10.244.1.99"}, {"fd00:10:244:1::99"}},
			reason: nat.ReasonBackendUnverified, says: "no running Pod"},
		{name: "node-address", public: []string{p.topo.NodeA.Addr4().String(), p.topo.NodeB.Addr6().String()},
			reason: nat.ReasonNotPermitted, says: "is an address of node node-a and is never captured"},
		{name: "address-of-another", public: dual(10), reason: nat.ReasonAddressConflict, says: "belongs to the older Service tenant-a/web"},
		{name: "ports-of-another", public: dual(10), reason: nat.ReasonAddressConflict, says: "belongs to the older Service tenant-a/web",
			edit: func(s *corev1.Service) { s.Annotations[nat.AnnotationWholeIP] = "false" }},
		{name: "pod-address", public: texts(web.Addrs), reason: nat.ReasonNotPermitted, says: "is in the cluster range"},
		{name: "service-address", public: []string{"10.96.0.1"}, reason: nat.ReasonNotPermitted, says: "is in the cluster range"},
		{name: "server-address", public: []string{"127.0.0.1"}, reason: nat.ReasonInvalidAddress, says: "127.0.0.1"},
		{name: "everything", public: []string{"0.0.0.0", "::"}, reason: nat.ReasonInvalidAddress, says: "0.0.0.0"},
		{name: "many-at-once", public: []string{"224.0.0.1", "ff02::1", "255.255.255.255"}, reason: nat.ReasonInvalidAddress, says: "224.0.0.1"},
		{name: "names", public: dual(11), node: "node-a", slices: [][]string{{"machine.example"}},
			reason: nat.ReasonBackendUnverified, says: `address type "FQDN" is not served`},
		{name: "link", public: []string{"fe80::1", "169.254.1.1"}, reason: nat.ReasonInvalidAddress, says: "fe80::1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := *p
			q.t = t
			q.attempt(t, c.name, c.public, c.node, c.slices, c.edit)
			q.says(tenantB, c.name, c.reason, c.says)
			q.obtainedNothing(t, c.name, before)
		})
	}
	p.says(tenantA, "web", nat.ReasonProgrammed)
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		visit{name: "the machine", from: p.topo.Ext.NS, to: public(f, 10), sees: p.topo.Ext.Addr(f), at: web.Addr(f)}.check(t)
		require.Equal(t, public(f, 10), overTCP().leavesWith(t, web.NS, overTCP().serveOn(t, p.topo.Ext.NS, 0).At(p.topo.Ext.Addr(f))))
		visit{name: "the node", from: p.topo.Ext.NS, to: p.topo.NodeA.Addr(f), sees: p.topo.Ext.Addr(f), at: p.topo.NodeA.Addr(f)}.check(t)
		visit{name: "what was refused", from: p.topo.Ext.NS, to: public(f, 11)}.refused(t)
	})
}

// attempt makes a Service of the author. Addresses that the API server does not admit would show nothing: the case has to be changed then.
func (p *clusterPlane) attempt(t *testing.T, name string, public []string, node string, slices [][]string, edit func(*corev1.Service)) {
	t.Helper()
	p.kube.Service(t, tenantB, name, "cozy-proxy", bothFamilies, func(s *corev1.Service) {
		s.Spec.Selector = map[string]string{"app": "db"}
		if slices != nil {
			s.Spec.Selector = nil
		}
		if edit != nil {
			edit(s)
		}
	})
	t.Cleanup(func() {
		require.NoError(t, p.kube.Core.Services(tenantB).Delete(context.Background(), name, metav1.DeleteOptions{}))
		p.gone(name)
	})
	for _, addrs := range slices {
		require.NoError(t, p.slice(name, node, addrs...))
	}
	p.kube.Assign(t, tenantB, name, public...)
}

// obtainedNothing shows that a Service changed the translation of no address that anyone else has. It may hold the free address .11, for
// which the guard stands then.
func (p *clusterPlane) obtainedNothing(t *testing.T, name, before string) {
	t.Helper()
	for _, node := range []string{"node-a", "node-b"} {
		plan, err := p.agents[node].agent.Plan(t.Context())
		require.NoError(t, err)
		for _, tr := range plan.Translations {
			require.NotEqual(t, tenantB+"/"+name, tr.Owner, "%+v", tr)
		}
	}
	free := []netip.Addr{public(testenv.IPv4, 11), public(testenv.IPv6, 11)}
	for line := range strings.Lines(elements(t, p.topo.NodeA.NS)) {
		guarded := slices.ContainsFunc(free, func(a netip.Addr) bool { return strings.Contains(line, " "+a.String()+" ") })
		require.True(t, strings.Contains(before, line) || guarded, "%q is new", line)
	}
}

// gone waits until no agent knows a Service of the author.
func (p *clusterPlane) gone(name string) {
	p.t.Helper()
	for node, a := range p.agents {
		testenv.Eventually(p.t, controllersTake, node+" forgets "+name, func() error {
			plan, err := a.agent.Plan(context.Background())
			if err != nil {
				return err
			}
			for _, v := range plan.Verdicts {
				if v.Namespace == tenantB && v.Name == name {
					return fmt.Errorf("%+v", v)
				}
			}
			return nil
		})
	}
}

// age waits for the next second of the API server's timestamps.
func age(t *testing.T) {
	t.Helper()
	second := time.Now().Unix()
	testenv.Eventually(t, patience, "the next second", func() error {
		if time.Now().Unix() <= second {
			return context.DeadlineExceeded
		}
		return nil
	})
}
