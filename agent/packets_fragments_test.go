// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
)

// TestPortListNeverPassesUnlistedFragments: the ports are in the first fragment only, the verdict is for all.
func TestPortListNeverPassesUnlistedFragments(t *testing.T) {
	t.Parallel()
	p := tenantPlane(t)
	web, ext := p.topo.Web, p.topo.Ext
	p.serve(web, exposure{name: "web", public: dual(11), ports: []corev1.ServicePort{udpPort("dns", 53)}})
	w := p.wires()
	eachFamily(t, func(t *testing.T, f testenv.Family) {
		client := netip.AddrPortFrom(ext.Addr(f), 40000)
		for i, tc := range []struct {
			name   string
			port   uint16
			pick   []int // which of the two fragments are sent, in this order
			passes bool
		}{
			{"listed", 53, []int{0, 1}, true},
			{"listed, the other way round", 53, []int{1, 0}, true},
			{"unlisted", 54, []int{0, 1}, false},
			{"unlisted, the other way round", 54, []int{1, 0}, false},
			{"first of a listed one only", 53, []int{0}, false},
			{"last of a listed one only", 53, []int{1}, false},
		} {
			require.NoError(t, testenv.ResetAll(w.atWeb, w.uplink))
			datagram := testenv.UDPDatagram{Src: client, Dst: netip.AddrPortFrom(public(f, 11), tc.port), Payload: make([]byte, 64)}.Packet()
			parts := inTwo(datagram, uint16(100+i))
			for _, n := range tc.pick {
				send(t, ext.NS, parts[n])
			}
			if tc.passes {
				arrival(t, w.atWeb, tc.name, func(pk testenv.Packet) bool { return pk.DstPort == tc.port && pk.Src == client.Addr() })
				continue
			}
			w.atWeb.Never(t, tc.name, func(pk testenv.Packet) bool { return pk.Src == client.Addr() })
			w.uplink.Never(t, tc.name+" comes back", func(pk testenv.Packet) bool {
				return pk.Dir == testenv.Out && (pk.Src == client.Addr() || pk.Dst == client.Addr())
			})
		}
	})
}

// inTwo cuts a packet after 16 bytes of its transport: RFC 791 and, with a header of its own, RFC 8200 4.5.
func inTwo(packet []byte, id uint16) [2][]byte {
	const cut = 16
	p, err := testenv.ParsePacket(packet)
	if err != nil {
		panic(err)
	}
	header := testenv.IPHeader{Src: p.Src, Dst: p.Dst, Proto: p.Proto}
	if p.Src.Is4() {
		first, last := header.Packet(p.Transport[:cut]), header.Packet(p.Transport[cut:])
		for _, fragment := range [][]byte{first, last} {
			fragment[4], fragment[5] = byte(id>>8), byte(id)
		}
		first[6], last[7] = 0x20, cut/8 // more follow; the offset in units of 8 bytes
		return [2][]byte{first, last}
	}
	header.Proto = unix.IPPROTO_FRAGMENT
	fragment := func(offsetAndMore byte, part []byte) []byte {
		extension := []byte{p.Proto, 0, 0, offsetAndMore, 0, 0, byte(id >> 8), byte(id)}
		return header.Packet(append(extension, part...))
	}
	return [2][]byte{fragment(1, p.Transport[:cut]), fragment(cut, p.Transport[cut:])}
}
