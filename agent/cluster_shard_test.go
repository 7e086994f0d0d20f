// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const galactic = "galactic-system"

func (p *clusterPlane) shards() dynamic.ResourceInterface {
	resource := schema.GroupVersionResource{Group: "network.datumapis.com", Version: "v1alpha1", Resource: "egressshards"}
	return p.kube.Dynamic.Resource(resource).Namespace(galactic)
}

// shard makes a shard with the public addresses that end in last.
func (p *clusterPlane) shard(name, node string, last int) {
	p.t.Helper()
	p.kube.Namespace(p.t, galactic)
	_, err := p.shards().Create(p.t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "network.datumapis.com/v1alpha1", "kind": nat.KindEgressShard,
		"metadata": map[string]any{"name": name},
		"spec": map[string]any{
			"targetRef":        map[string]any{"kind": "Node", "name": node},
			"shardAddressIPv4": public(testenv.IPv4, last).String(), "nat64Prefix": "64:ff9b::/96",
			"shardAddressIPv6": public(testenv.IPv6, last).String(),
		},
	}}, metav1.CreateOptions{})
	require.NoError(p.t, err)
}

func (p *clusterPlane) deleteShard(name string) {
	p.t.Helper()
	require.NoError(p.t, p.shards().Delete(p.t.Context(), name, metav1.DeleteOptions{}))
}

func (p *clusterPlane) shardStatus(name string) (nat.EgressShardStatus, error) {
	object, err := p.shards().Get(p.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nat.EgressShardStatus{}, err
	}
	shard := &nat.EgressShard{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, shard)
	return shard.Status, err
}

// shardSays waits until the conditions of a shard have these reasons and Programmed has these texts; its status names the addresses when
// they are programmed, and none otherwise.
func (p *clusterPlane) shardSays(name, ready string, programmed nat.Reason, last int, texts ...string) {
	p.t.Helper()
	testenv.Eventually(p.t, controllersTake, fmt.Sprintf("shard %s says %s", name, programmed), func() error {
		s, err := p.shardStatus(name)
		if err != nil {
			return err
		}
		reasons, message := map[string]string{}, ""
		for _, c := range s.Conditions {
			reasons[c.Type] = c.Reason
			if c.Type == status.ShardProgrammed {
				message = c.Message
			}
		}
		want := [2]string{}
		if programmed == nat.ReasonAddressesProgrammed {
			want = [2]string{public(testenv.IPv4, last).String(), public(testenv.IPv6, last).String()}
		}
		if reasons[status.ShardReady] != ready || reasons[status.ShardProgrammed] != string(programmed) ||
			[2]string{s.ShardAddressIPv4, s.ShardAddressIPv6} != want {
			return fmt.Errorf("%+v", s)
		}
		for _, text := range texts {
			if !strings.Contains(message, text) {
				return fmt.Errorf("no %q in %q", text, message)
			}
		}
		return nil
	})
}

// serves returns the addresses that the kernel of a node translates to as a shard's.
func (p *clusterPlane) serves(node string) string {
	p.t.Helper()
	ns := p.topo.Node(node).NS
	var found []string
	for _, set := range []string{"shard4", "shard6"} {
		for _, field := range strings.Fields(ns.Nft(p.t, "list", "map", "inet", "natplane", set)) {
			if a, err := netip.ParseAddr(strings.Trim(field, ",")); err == nil {
				found = append(found, a.String())
			}
		}
	}
	return strings.Join(found, " ")
}

// nextSecond waits until an object that is made now is younger than what there is: the API server's times are seconds.
func nextSecond(t *testing.T) {
	t.Helper()
	now := time.Now().Unix()
	testenv.Eventually(t, patience, "the next second", func() error {
		if time.Now().Unix() == now {
			return fmt.Errorf("still %d", now)
		}
		return nil
	})
}

// TestClusterShardAndServiceWithOneAddress: each says who has the address and what to do, and takes over when the other goes.
func TestClusterShardAndServiceWithOneAddress(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	answer(t, web.NS)
	tcp := overTCP().serveOn(t, ext.NS, 0)
	p.pod("web", "web", "node-a", web.Addrs...)
	p.expose("web", 10)
	p.says(tenantA, "web", nat.ReasonProgrammed)
	reaches := func() {
		for _, f := range testenv.Families() {
			visit{name: "in", from: ext.NS, to: public(f, 10), sees: ext.Addr(f), at: web.Addr(f)}.check(t)
		}
	}
	lends := func() {
		for _, f := range testenv.Families() {
			require.Equal(t, public(f, 10), overTCP().leavesWith(t, db.NS, tcp.At(ext.Addr(f))))
			visit{name: "in", from: ext.NS, to: public(f, 10)}.refused(t)
		}
	}

	nextSecond(t)
	p.shard("one", "node-a", 10)
	p.shardSays("one", status.ReasonDatapathNotAttached, nat.ReasonShardConflict, 10,
		public(testenv.IPv4, 10).String()+" belongs to the older Service tenant-a/web: give the Service another address")
	require.Empty(t, p.serves("node-a"))
	reaches()
	p.says(tenantA, "web", nat.ReasonProgrammed)

	require.NoError(t, p.kube.Core.Services(tenantA).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	p.shardSays("one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, 10, "leave as "+public(testenv.IPv4, 10).String())
	p.translates("node-a", 10, nil)
	lends()

	nextSecond(t)
	p.expose("web", 10)
	p.says(tenantA, "web", nat.ReasonAddressConflict, public(testenv.IPv4, 10).String()+" belongs to the older EgressShard galactic-system/one: delete one of the two")
	p.translates("node-a", 10, nil)
	lends()
	p.shardSays("one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, 10)

	p.deleteShard("one")
	p.translates("node-a", 10, &web.Host)
	p.says(tenantA, "web", nat.ReasonProgrammed)
	require.Empty(t, p.serves("node-a"))
	reaches()
}

// TestClusterShardMoves by being deleted and made anew under its name, faster than anybody follows: the last node has it, alone, and alone
// speaks for it.
func TestClusterShardMoves(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	nodes := []string{"node-a", "node-b"}
	both := public(testenv.IPv4, 200).String() + " " + public(testenv.IPv6, 200).String()
	for round := range 4 {
		from, to := nodes[round%2], nodes[(round+1)%2]
		for hop := range 1 + 2*round {
			if round+hop > 0 {
				p.deleteShard("one")
			}
			p.shard("one", []string{to, from}[hop%2], 200)
		}
		p.shardSays("one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, 200)
		testenv.Eventually(t, controllersTake, to+" alone has the shard", func() error {
			if have := [2]string{p.serves(from), p.serves(to)}; have != [2]string{"", both} {
				return fmt.Errorf("%s and %s serve %q", from, to, have)
			}
			return nil
		})
		s, err := p.shardStatus("one")
		require.NoError(t, err)
		for _, c := range s.Conditions {
			if c.Type == status.ShardReady {
				require.Contains(t, c.Message, "whether the network routes its addresses to this node is not known here")
			}
		}
		require.Equal(t, to, p.lastSpeaker("one"))
		silent := p.writes[from].Load()
		remains(t, 500*time.Millisecond, func() error {
			if now := p.writes[from].Load(); now != silent {
				return fmt.Errorf("%s writes as well", from)
			}
			return nil
		})
	}
}

// lastSpeaker is the node that made the latest Event of a shard with the name.
func (p *clusterPlane) lastSpeaker(name string) string {
	p.t.Helper()
	object, err := p.shards().Get(p.t.Context(), name, metav1.GetOptions{})
	require.NoError(p.t, err)
	node := ""
	testenv.Eventually(p.t, controllersTake, "an Event", func() error {
		list, err := p.kube.Core.Events(galactic).List(p.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(object.GetUID()),
		})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if node != "" && node != e.Source.Host {
				return fmt.Errorf("both %s and %s speak for it", node, e.Source.Host)
			}
			node = e.Source.Host
		}
		if node == "" {
			return fmt.Errorf("none")
		}
		return nil
	})
	return node
}

// TestClusterShardOfNobody names a Node that does not exist: nobody speaks for it, and nobody lets its addresses through.
func TestClusterShardOfNobody(t *testing.T) {
	p := newClusterPlane(t).startBoth()
	p.shard("one", "node-c", 200)
	for _, node := range []string{"node-a", "node-b"} {
		testenv.Eventually(t, controllersTake, node+" knows the address", func() error {
			if set := p.topo.Node(node).NS.Nft(t, "list", "set", "inet", "natplane", "public4"); !strings.Contains(set, public(testenv.IPv4, 200).String()) {
				return fmt.Errorf("%s", set)
			}
			return nil
		})
		require.Empty(t, p.serves(node))
	}
	remains(t, time.Second, func() error {
		s, err := p.shardStatus("one")
		if err == nil && (len(s.Conditions) > 0 || s.ShardAddressIPv4 != "") {
			err = fmt.Errorf("%+v", s)
		}
		return err
	})
}
