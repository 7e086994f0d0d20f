// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// untouched is a result of nothing, whatever is remembered.
func untouched(r Result) Result {
	r.Parted = nil
	return r
}

// without returns the sample without some of its public addresses, and without the shard.
func without(publics ...string) nat.State {
	s := sampleState()
	var kept []nat.Address
	for _, a := range s.Addresses {
		gone := false
		for _, public := range publics {
			gone = gone || a.Public == ip(public)
		}
		if !gone {
			kept = append(kept, a)
		}
	}
	s.Addresses = kept
	return s
}

// sampleGone is what is to be remembered of the addresses in the test.
func sampleGone() map[netip.Addr][]netip.Addr {
	return map[netip.Addr][]netip.Addr{
		ip("203.0.113.11"):     {ip("10.244.1.10")},
		ip("203.0.113.40"):     {ip("10.244.2.40")},
		ip("2001:db8:203::20"): {ip("fd00:10:244:1::20")},
	}
}

// TestAFormerAddressIsRemembered by the transaction that takes it away, for whoever starts next; and for a while.
func TestAFormerAddressIsRemembered(t *testing.T) {
	less := without("203.0.113.11", "203.0.113.40", "2001:db8:203::20")
	for name, change := range map[string]func(*testing.T, *Table){
		"a difference": func(t *testing.T, table *Table) {
			result, err := table.Apply(delta(sampleState(), less))
			require.NoError(t, err)
			require.Zero(t, result.Added, "it is not counted")
		},
		"a correction":    func(t *testing.T, table *Table) { require.Nil(t, syncTo(t, table, less).Parted, "Former has them") },
		"another layout":  func(t *testing.T, table *Table) { replaced(t, table, less) },
		"remembered long": func(t *testing.T, table *Table) { syncTo(t, table, less); replaced(t, table, less) },
	} {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			table := open(t, ns, Options{})
			syncTo(t, table, sampleState())
			change(t, table)
			require.NoError(t, table.Close())

			next := open(t, ns, Options{})
			result := syncTo(t, next, less)
			require.Equal(t, sampleGone(), result.Parted)
			require.Zero(t, untouched(result))
			requireHolds(t, ns, less)
			set := ns.Nft(t, "list", "set", "inet", tableName, "parted4")
			require.Contains(t, set, "203.0.113.11 . 10.244.1.10 ")
			require.Contains(t, set, " expires 9m")
		})
	}
}

func TestForget(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	syncTo(t, table, sampleState())
	before := generation(t, ns)
	require.NoError(t, table.Forget())
	require.Equal(t, before, generation(t, ns), "there is nothing to forget")
	syncTo(t, table, nat.State{})
	require.NoError(t, table.Forget())
	require.Equal(t, before+2, generation(t, ns))
	require.NoError(t, table.Forget())
	require.Equal(t, before+2, generation(t, ns))
	require.Zero(t, syncTo(t, table, nat.State{}), "nothing is remembered")
}

// replaced has the table written anew, as after an upgrade.
func replaced(t *testing.T, table *Table, state nat.State) {
	t.Helper()
	table.layout.chains[len(table.layout.chains)-1].rules[0].comment = "as it is said now"
	require.True(t, syncTo(t, table, state).Replaced)
	table.layout = newLayout(nat.PortRange{})
	require.True(t, syncTo(t, table, state).Replaced)
}

// TestWhatIsRememberedLoads: the listing of the table can be loaded again.
func TestWhatIsRememberedLoads(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{Unowned: true})
	syncTo(t, table, sampleState())
	syncTo(t, table, nat.State{})
	listing := ns.Nft(t, "list", "table", "inet", tableName)
	other := testenv.NewT(t, "other")
	other.Nft(t, listing)
	require.Contains(t, other.Nft(t, "list", "table", "inet", tableName), "203.0.113.11 . 10.244.1.10 ")
}

// TestPartings are about addresses that this node no longer translates, and no others.
func TestPartings(t *testing.T) {
	elements := func(change func(*nat.State)) []element {
		s := sampleState()
		change(&s)
		es, invalid := stateElements(&s)
		require.Empty(t, invalid)
		return es
	}
	for name, c := range map[string]struct {
		change func(*nat.State)
		want   string
	}{
		"nothing":         {func(*nat.State) {}, ""},
		"another backend": {func(s *nat.State) { s.Addresses[0].Whole.Backend = ip("10.244.1.99") }, ""},
		"another owner":   {func(s *nat.State) { s.Addresses[0].Owner = owner("tenant-z", "web") }, ""},
		"a port less":     {func(s *nat.State) { s.Addresses[1].Ports = s.Addresses[1].Ports[:1] }, ""},
		"hosted by another node": {func(s *nat.State) { s.Addresses[0].Hosted, s.Addresses[0].Whole = false, nat.Forward{} },
			"203.0.113.10 . 10.244.1.10"},
		"translated for another node": {func(s *nat.State) { s.Addresses[0].Hosted, s.Addresses[0].Elsewhere = false, true }, ""},
		"the shard goes":              {func(s *nat.State) { s.Host.Shard = nat.Shard{} }, "203.0.113.200 . 0.0.0.0, 2001:db8:203::200 . ::"},
	} {
		t.Run(name, func(t *testing.T) {
			del, add := diff(elements(func(*nat.State) {}), elements(c.change))
			var texts []string
			for _, e := range partings(del, add) {
				texts = append(texts, e.addr.String()+" . "+e.from.String())
			}
			require.Equal(t, c.want, strings.Join(texts, ", "))
		})
	}
}
