// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

type judgement struct {
	name string
	flow string
	want Verdict
}

func (j judgement) run(t *testing.T, w world, x *Index) {
	t.Run(j.name, func(t *testing.T) {
		f := w.flow(j.flow)
		require.Equal(t, j.want.String(), x.Judge(f, w.former()).String(), f.String())
	})
}

func TestJudgeInbound(t *testing.T) {
	rows := []judgement{
		{"whole address", "tcp 192.0.2.1:4000 203.0.113.10:80 10.244.1.10:80 192.0.2.1:4000", Legal},
		{"whole address, any protocol", "gre 192.0.2.1:0 203.0.113.10:0 10.244.1.10:0 192.0.2.1:0", Legal},
		{"whole address, any ICMP", "icmp/13 192.0.2.1:7 203.0.113.10:0 10.244.1.10:0 192.0.2.1:7", Legal},
		{"client port changed to avoid a clash", "udp 192.0.2.1:4000 203.0.113.10:80 10.244.1.10:80 192.0.2.1:1024", Legal},
		{"backend changed", "tcp 192.0.2.1:4000 203.0.113.10:80 10.244.1.20:80 192.0.2.1:4000", Moved},
		{"backend changed, one-way UDP", "udp 192.0.2.1:5000 203.0.113.10:8125 10.244.1.99:8125 192.0.2.1:5000", Moved},
		{"method changed to whole", "tcp 192.0.2.1:4000 203.0.113.10:443 10.244.1.10:8443 192.0.2.1:4000", Moved},
		{"listed port", "tcp 192.0.2.1:4000 203.0.113.11:443 10.244.1.10:8443 192.0.2.1:4000", Legal},
		{"same number, other protocol", "udp 192.0.2.1:4000 203.0.113.11:443 10.244.1.10:8443 192.0.2.1:4000", Unlisted},
		{"port retargeted", "tcp 192.0.2.1:4000 203.0.113.11:443 10.244.1.10:443 192.0.2.1:4000", Moved},
		{"port removed", "tcp 192.0.2.1:4000 203.0.113.11:22 10.244.1.10:22 192.0.2.1:4000", Unlisted},
		{"method changed to list", "gre 192.0.2.1:0 203.0.113.11:0 10.244.1.10:0 192.0.2.1:0", Unlisted},
		{"echo allowed", "icmp 192.0.2.1:7 203.0.113.11:0 10.244.1.10:0 192.0.2.1:7", Legal},
		{"only echo allowed", "icmp/13 192.0.2.1:7 203.0.113.11:0 10.244.1.10:0 192.0.2.1:7", Unlisted},
		{"echo no longer allowed", "icmp 192.0.2.1:7 203.0.113.20:0 10.244.1.20:0 192.0.2.1:7", Unlisted},
		{"inside the source range", "tcp 192.0.2.1:4000 203.0.113.20:22 10.244.1.20:22 192.0.2.1:4000", Legal},
		{"source range narrowed, list", "tcp 192.0.3.1:4000 203.0.113.20:22 10.244.1.20:22 192.0.3.1:4000", Refused},
		{"source range narrowed, whole", "udp 192.0.3.1:4000 203.0.113.21:22 10.244.1.20:22 192.0.3.1:4000", Refused},
		{"leftover from before the mapping", "udp 192.0.2.1:4000 203.0.113.10:80 203.0.113.10:80 192.0.2.1:4000", Direct},
		{"leftover, unlisted port", "udp 192.0.2.1:4000 203.0.113.11:80 203.0.113.11:80 192.0.2.1:4000", Direct},
		{"node's own address, masqueraded", "tcp 198.51.100.2:4000 203.0.113.10:80 10.244.1.10:80 198.51.100.1:4000", Legal},
		{"another node's machine", "tcp 203.0.113.30:4000 203.0.113.10:80 10.244.1.10:80 203.0.113.30:4000", Legal},
		{"in-cluster client, kept", "tcp 172.20.1.77:4000 203.0.113.10:80 10.244.1.10:80 172.20.1.77:4000", Legal},
	}
	eachFamily(t, func(t *testing.T, w world) {
		for _, row := range rows {
			row.run(t, w, NewIndex(w.state()))
		}
	})
}

func TestJudgeAddressOfAnotherNode(t *testing.T) {
	rows := []judgement{
		{"from an uplink, translated once", "tcp 192.0.2.1:4000 203.0.113.30:80 10.244.1.10:80 192.0.2.1:4000", Direct},
		{"from an uplink, untranslated", "tcp 192.0.2.1:4000 203.0.113.30:80 203.0.113.30:80 192.0.2.1:4000", Direct},
		{"local dial is left alone", "tcp 172.20.1.77:4000 203.0.113.30:80 203.0.113.30:80 172.20.1.77:4000", Legal},
		{"local dial with a primary", "tcp 10.244.1.10:4000 203.0.113.30:80 203.0.113.30:80 203.0.113.10:4000", Legal},
		{"local dial with a primary, bare", "tcp 10.244.1.10:4000 203.0.113.30:80 203.0.113.30:80 10.244.1.10:4000", Bare},
		{"unknown source that another masquerades", "tcp 172.16.0.1:4000 203.0.113.30:80 203.0.113.30:80 198.51.100.1:4000", Legal},
		{"local dial, machine moved away", "tcp 172.20.1.77:4000 203.0.113.30:80 10.244.1.10:80 172.20.1.77:4000", Released},
		{"local dial that another translates", "tcp 172.20.1.77:4000 203.0.113.30:80 10.244.2.30:80 172.20.1.77:4000", Legal},
		{"egress of a machine that moved away", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.30:4000", Detached},
		{"policy Cluster, masqueraded", "tcp 192.0.2.1:4000 203.0.113.40:80 10.244.2.40:80 198.51.100.1:4000", Legal},
		{"policy Cluster, machine was here", "tcp 192.0.2.1:4000 203.0.113.40:80 10.244.2.40:80 192.0.2.1:4000", Unmasqueraded},
		{"policy Cluster, local dial from here", "tcp 10.244.1.10:4000 203.0.113.40:80 10.244.2.40:80 203.0.113.10:4000", Unmasqueraded},
		{"policy Cluster, another backend", "tcp 192.0.2.1:4000 203.0.113.40:80 10.244.2.41:80 198.51.100.1:4000", Moved},
		{"policy Cluster, leftover", "tcp 192.0.2.1:4000 203.0.113.40:80 203.0.113.40:80 192.0.2.1:4000", Direct},
		{"policy Cluster, local dial is left alone", "tcp 172.20.1.77:4000 203.0.113.40:80 203.0.113.40:80 172.20.1.77:4000", Legal},
	}
	eachFamily(t, func(t *testing.T, w world) {
		for _, row := range rows {
			row.run(t, w, NewIndex(w.state()))
		}
	})
}

func TestJudgeOutbound(t *testing.T) {
	rows := []judgement{
		{"primary", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.10:4000", Legal},
		{"source port changed", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.10:1024", Legal},
		{"attached, no longer primary", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.11:4000", Legal},
		{"address of another machine", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.20:4000", Detached},
		{"untranslated, just got its first", "udp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 10.244.1.10:4000", Bare},
		{"untranslated ping", "icmp 10.244.1.10:7 192.0.2.1:0 192.0.2.1:0 10.244.1.10:7", Bare},
		{"untranslated to the cluster", "tcp 10.244.1.10:4000 10.96.0.10:53 10.244.1.9:53 10.244.1.10:4000", Legal},
		{"untranslated to a node", "tcp 10.244.1.10:4000 198.51.100.2:22 198.51.100.2:22 10.244.1.10:4000", Legal},
		{"translated to the cluster", "tcp 10.244.1.10:4000 10.244.2.9:80 10.244.2.9:80 203.0.113.10:4000", InCluster},
		{"to its private address", "tcp 192.0.2.1:4000 10.244.1.10:80 10.244.1.10:80 192.0.2.1:4000", Legal},
		{"masqueraded by another program", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 198.51.100.1:4000", Legal},
		{"another program's service", "tcp 172.20.1.77:4000 10.96.0.10:53 10.244.2.9:53 172.20.1.77:4000", Legal},
		{"another program's public service", "tcp 192.0.2.1:4000 192.0.2.99:80 10.244.2.9:80 192.0.2.1:4000", Legal},
		{"somebody else's connection", "tcp 192.0.2.1:4000 192.0.2.2:80 192.0.2.2:80 192.0.2.1:4000", Legal},
		{"public address as a source", "tcp 203.0.113.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.10:4000", Borrowed},
		{"public address as a source, from the node that it moved to", "tcp 203.0.113.10:4000 203.0.113.11:443 10.244.1.10:8443 203.0.113.10:4000", Legal},
		{"hairpin to another machine", "tcp 10.244.1.10:4000 203.0.113.20:22 10.244.1.20:22 203.0.113.10:4000", Refused},
		{"hairpin to itself", "tcp 10.244.1.10:4000 203.0.113.11:443 10.244.1.10:8443 203.0.113.10:4000", Legal},
		{"hairpin, peer side stale", "tcp 10.244.1.10:4000 203.0.113.11:443 10.244.1.20:8443 203.0.113.10:4000", Moved},
		{"hairpin, own side stale", "tcp 10.244.1.20:4000 203.0.113.11:443 10.244.1.10:8443 203.0.113.10:4000", Detached},
		{"hairpin, own side bare", "tcp 10.244.1.20:4000 203.0.113.11:443 10.244.1.10:8443 10.244.1.20:4000", Bare},
	}
	eachFamily(t, func(t *testing.T, w world) {
		for _, row := range rows {
			row.run(t, w, NewIndex(w.state()))
		}
	})
}

func TestJudgeRemovedAddress(t *testing.T) {
	rows := []judgement{
		{"inbound", "tcp 192.0.2.1:4000 203.0.113.99:80 10.244.1.10:80 192.0.2.1:4000", Released},
		{"inbound, nobody remembers", "tcp 192.0.2.1:4000 203.0.113.98:80 10.244.1.10:80 192.0.2.1:4000", Released},
		{"inbound, taken over by another program", "tcp 192.0.2.1:4000 203.0.113.99:80 10.244.2.9:80 192.0.2.1:4000", Legal},
		{"outbound", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.99:4000", Released},
		{"untranslated, as the state has it", "tcp 192.0.2.1:4000 203.0.113.99:80 203.0.113.99:80 192.0.2.1:4000", Legal},
		{"not in this audit", "tcp 192.0.2.1:4000 203.0.113.97:80 10.244.1.10:80 192.0.2.1:4000", Legal},
	}
	eachFamily(t, func(t *testing.T, w world) {
		for _, row := range rows {
			row.run(t, w, NewIndex(w.state()))
		}
	})
}

func TestJudgeShard(t *testing.T) {
	rows := []judgement{
		{"source", "tcp 10.9.0.1:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.200:4000", Legal},
		{"backend that has its own address now", "tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.200:4000", Legal},
		{"no source", "tcp 172.16.0.1:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.200:4000", Detached},
		{"to the cluster", "tcp 10.9.0.1:4000 198.51.100.2:80 198.51.100.2:80 203.0.113.200:4000", InCluster},
		{"to the sources", "tcp 10.9.0.1:4000 10.9.0.2:80 10.9.0.2:80 203.0.113.200:4000", Detached},
		{"before the shard", "udp 10.9.0.1:4000 192.0.2.1:80 192.0.2.1:80 10.9.0.1:4000", Bare},
		{"backend that lends no address, before the shard", "udp 10.244.1.50:4000 192.0.2.1:80 192.0.2.1:80 10.244.1.50:4000", Bare},
		{"the node's own private address", "udp 10.200.0.1:4000 192.0.2.1:80 192.0.2.1:80 10.200.0.1:4000", Legal},
		{"private to private", "udp 10.9.0.1:4000 10.8.0.1:80 10.8.0.1:80 10.9.0.1:4000", Legal},
		{"unsolicited", "udp 192.0.2.1:4000 203.0.113.200:80 203.0.113.200:80 192.0.2.1:4000", Direct},
		{"was a public address", "udp 192.0.2.1:4000 203.0.113.200:80 10.244.1.10:80 192.0.2.1:4000", Direct},
	}
	eachFamily(t, func(t *testing.T, w world) {
		for _, row := range rows {
			row.run(t, w, NewIndex(w.state()))
		}
		s := w.state()
		w.setShard(&s, "203.0.113.98")
		judgement{"address changed", "tcp 10.9.0.1:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.99:4000", Released}.run(t, w, NewIndex(s))
		s.Host.Shard = nat.Shard{}
		judgement{"shard gone", "tcp 10.9.0.1:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.99:4000", Released}.run(t, w, NewIndex(s))
		judgement{"no shard, bare source", "udp 10.9.0.1:4000 192.0.2.1:80 192.0.2.1:80 10.9.0.1:4000", Legal}.run(t, w, NewIndex(s))
		judgement{"backend that lends no address", "udp 10.244.1.50:4000 192.0.2.1:80 192.0.2.1:80 10.244.1.50:4000", Legal}.run(t, w, NewIndex(s))
	})
}

func TestJudgeKnowsLocalTraffic(t *testing.T) {
	for _, dst := range []string{"224.0.0.251", "169.254.20.10", "255.255.255.255", "ff02::fb", "fe80::1"} {
		a := netip.MustParseAddr(dst)
		w := world(familyOf(a))
		src := w.addr("10.244.1.10")
		f := Flow{Protocol: nat.UDP, Orig: Tuple{Src: src, Dst: a}, Reply: Tuple{Src: a, Dst: src}}
		require.Equal(t, Legal, NewIndex(w.state()).Judge(f, nil), dst)
	}
}

func TestIndexFollowsDeltas(t *testing.T) {
	w := world(IPv4)
	after := w.state()
	after.Addresses = after.Addresses[1:]
	after.Backends = after.Backends[1:]
	after.Host.Cluster = after.Host.Cluster[1:]
	x := NewIndex(nat.State{})
	x.Apply(deltaOf(nat.State{}, w.state()))
	require.Equal(t, NewIndex(w.state()), x)
	x.Apply(deltaOf(w.state(), after))
	require.Equal(t, NewIndex(after), x)
}

func TestJudgeEchoOfAShard(t *testing.T) {
	const ping = "icmp 192.0.2.1:7 203.0.113.200:0 198.51.100.1:0 192.0.2.1:7"
	eachFamily(t, func(t *testing.T, w world) {
		s := w.state()
		judgement{"asked and not answered here", ping, Direct}.run(t, w, NewIndex(s))
		s.Host.Shard.Echo = true
		judgement{"the node answers", ping, Legal}.run(t, w, NewIndex(s))
		judgement{"only echo", "udp 192.0.2.1:7 203.0.113.200:53 198.51.100.1:53 192.0.2.1:7", Direct}.run(t, w, NewIndex(s))
	})
}

func TestJudgeTenants(t *testing.T) {
	eachFamily(t, func(t *testing.T, w world) {
		s := w.state()
		s.Host.TenantTables = []uint16{100}
		// The address is that of a machine, too.
		f := w.flow("tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.200:4000")
		for zone, want := range map[uint16]Verdict{0: Legal, 100: Legal, 200: Detached} {
			f.Orig.Zone = zone
			require.Equal(t, want, NewIndex(s).Judge(f, w.former()), "zone %d", zone)
		}
	})
}

// A tenant that is gone takes all its flows along, also those that stayed in the cluster; zones of others are none of ours.
func TestTenantsThatAreGone(t *testing.T) {
	eachFamily(t, func(t *testing.T, w world) {
		before, after := w.state(), w.state()
		before.Host.TenantTables, after.Host.TenantTables = []uint16{100, 200}, []uint16{200, 300}
		former := newPass(nil).scope
		affected(nat.Delta{Host: &nat.Change[nat.Host]{Old: &before.Host, New: &after.Host}}, former.add)
		x := NewIndex(after)
		for _, line := range []string{
			"tcp 10.244.1.10:4000 192.0.2.1:80 192.0.2.1:80 203.0.113.200:4000",
			"udp 10.244.1.10:4000 10.244.1.50:80 10.244.1.50:80 10.244.1.10:4000",
		} {
			f := w.flow(line)
			for zone, want := range map[uint16]Verdict{100: Orphaned, 200: Legal, 300: Legal, 0: Legal} {
				f.Orig.Zone = zone
				require.Equal(t, want == Orphaned, former.touches(x, f), "zone %d of %s", zone, line)
				require.Equal(t, want.String(), x.Judge(f, &former).String(), "zone %d of %s", zone, line)
			}
		}
		f := w.flow("udp 10.244.1.10:4000 10.244.1.50:80 10.244.1.50:80 10.244.1.10:4000")
		f.Orig.Zone = 400
		require.Equal(t, Legal, x.Judge(f, &former), "in a zone of somebody else")
		f.Orig.Zone, f.Zone = 0, 100
		require.Equal(t, Legal, x.Judge(f, &former), "both directions are in the zone: no tenant of ours")
	})
}
