// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// TestTheNodeAnswersTheTenantThatAsked: both have one address and dial from one port, and the main table leads to a machine with that address.
func TestTheNodeAnswersTheTenantThatAsked(t *testing.T) {
	t.Parallel()
	o := overlappingPlane(t)
	node := o.topo.NodeA
	atWeb := testenv.CaptureT(t, o.topo.Web.NS, o.topo.Web.If)
	for _, tr := range []transport{overTCP(), overUDP()} {
		server := tr.serveOn(t, node.NS, 0)
		eachFamily(t, func(t *testing.T, f testenv.Family) {
			a := tr.connect(t, o.a.NS, testenv.LocalPort(40050), server.At(node.Addr(f)))
			b := tr.connect(t, o.b.NS, testenv.LocalPort(40050), server.At(node.Addr(f)))
			for range 2 {
				require.NoError(t, a.RoundTrip())
				require.NoError(t, b.RoundTrip())
			}
		})
	}
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		for _, m := range []*testenv.Machine{o.a, o.b} {
			_, err := testenv.Echo{Dst: node.Addr(f), ID: 78, Seq: 1, Payload: []byte("echo of " + m.Name)}.Ping(m.NS, patience)
			require.NoError(t, err)
		}
	})
	atWeb.Never(t, "an answer for a tenant", func(pk testenv.Packet) bool { return pk.DstPort == 40050 || marked("echo of ")(pk) })
}
