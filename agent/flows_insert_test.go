// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	ct "github.com/ti-mo/conntrack"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// insertTimeout is in seconds, longer than any test.
const insertTimeout = 3600

// plainFlow is a flow that nobody translates.
func plainFlow(protocol uint8, from, to netip.AddrPort) conntrack.Flow {
	return conntrack.Flow{
		Protocol: nat.Protocol(protocol),
		Orig:     conntrack.Tuple{Src: from.Addr(), SrcPort: from.Port(), Dst: to.Addr(), DstPort: to.Port()},
		Reply:    conntrack.Tuple{Src: to.Addr(), SrcPort: to.Port(), Dst: from.Addr(), DstPort: from.Port()},
	}
}

// insert puts flows into the table of a node, as if packets had made them. One that is there already stays.
func insert(t testing.TB, ns *testenv.NetNS, flows ...conntrack.Flow) {
	t.Helper()
	conn, err := ct.Dial(&netlink.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	for _, f := range flows {
		made := ct.Flow{Timeout: insertTimeout, Zone: f.Zone, TupleOrig: tupleOf(f, f.Orig), TupleReply: tupleOf(f, f.Reply)}
		made.Status = ct.StatusConfirmed
		if err := conn.Create(made); err != nil {
			require.ErrorIs(t, err, unix.EEXIST, "%v", f)
		}
	}
}

func tupleOf(f conntrack.Flow, t conntrack.Tuple) ct.Tuple {
	out := ct.Tuple{IP: ct.IPTuple{SourceAddress: t.Src, DestinationAddress: t.Dst}}
	out.Proto = ct.ProtoTuple{Protocol: uint8(f.Protocol), SourcePort: t.SrcPort, DestinationPort: t.DstPort}
	switch f.Protocol {
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		out.Proto = ct.ProtoTuple{
			Protocol: uint8(f.Protocol), ICMPv4: f.Protocol == unix.IPPROTO_ICMP, ICMPv6: f.Protocol == unix.IPPROTO_ICMPV6,
			ICMPID: t.SrcPort, ICMPType: t.ICMPType, ICMPCode: t.ICMPCode,
		}
	}
	return out
}
