// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

func TestSampleMachinesAreReached(t *testing.T) {
	p := newPlane(t)
	srv := testenv.ListenTCP(t, p.topo.Web.NS, netip.MustParseAddrPort("[::]:8080"))
	for _, public := range []string{"203.0.113.10", "2001:db8:203::10"} {
		addr := netip.MustParseAddr(public)
		conn, err := testenv.DialTCP(p.topo.Ext.NS, netip.AddrPort{}, srv.At(addr), 2*time.Second)
		require.NoError(t, err)
		require.Equal(t, p.topo.Ext.Addr(testenv.FamilyOf(addr)), conn.SeenByPeer.Addr())
	}
	t.Log(p.topo.NodeA.NS.Nft(t, "list", "table", "inet", "natplane"))
}
