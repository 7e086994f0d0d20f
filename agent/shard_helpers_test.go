// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"net/netip"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// shardName is the shard of node-a in tests of shards.
const shardName = "galactic-system/node-a-egress"

// shardPlane is a tenantPlane whose node-a serves a shard with the addresses that end in 200.
func shardPlane(t testing.TB, edits ...func(*agent.Options)) *plane {
	t.Helper()
	p := emptyPlane(t)
	for k := range p.objects.current.Services {
		p.objects.deleteService(k.String())
	}
	for _, m := range []*testenv.Machine{p.topo.Web, p.topo.DB, p.topo.Mail} {
		p.objects.pod(tenantNamespace+m.Name, m.Node.Name, m.Addrs...)
	}
	p.objects.shard(shardName, "node-a", dual(200)...)
	p.start("node-a", edits...)
	p.settle()
	return p
}

// shard adds or replaces an EgressShard. The name is the UID.
func (o *objects) shard(name, node string, addrs ...string) {
	k := key(name)
	s := &nat.EgressShard{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.Namespace, Name: k.Name, UID: types.UID(name),
			CreationTimestamp: metav1.NewTime(time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)),
		},
		Spec: nat.EgressShardSpec{TargetRef: nat.EgressShardTarget{Kind: "Node", Name: node}},
	}
	for _, a := range addrs {
		if netip.MustParseAddr(a).Is4() {
			s.Spec.ShardAddressIPv4 = a
		} else {
			s.Spec.ShardAddressIPv6 = a
		}
	}
	batch := nat.NewObjects()
	batch.Shards[k] = s
	o.change(batch)
}

func (o *objects) deleteShard(name string) {
	batch := nat.NewObjects()
	batch.Shards[key(name)] = nil
	o.change(batch)
}

// isPrivate matches what an uplink must never carry away: a source of a machine.
func isPrivate(p testenv.Packet) bool {
	return p.Dir == testenv.Out && p.Src.IsPrivate()
}

// counterOf returns how many packets the rules with a comment dropped.
func (p *plane) counterOf(node, comment string) (n uint64) {
	p.t.Helper()
	report, err := p.agents[node].agent.Report(context.Background())
	require.NoError(p.t, err)
	for _, d := range report.Drops {
		if d.Comment == comment {
			n += d.Packets
		}
	}
	return n
}

// kernelCount is a counter of connection tracking on a node, over all processors.
func kernelCount(t testing.TB, node *testenv.Node, name string) (sum int) {
	t.Helper()
	testenv.RequireTool(t, "conntrack")
	out, err := node.NS.Run(context.Background(), "conntrack", "-S")
	require.NoError(t, err)
	found := regexp.MustCompile(`\b`+name+`=(\d+)`).FindAllStringSubmatch(out, -1)
	require.NotEmpty(t, found, out)
	for _, m := range found {
		n, err := strconv.Atoi(m[1])
		require.NoError(t, err)
		sum += n
	}
	return sum
}
