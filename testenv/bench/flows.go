// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const (
	// crowdFlows are the flows of the audit, of crowdAddresses public addresses, in turns.
	crowdFlows     = 200_000
	crowdAddresses = 10_000
	// flowTimeout is in seconds, longer than any measurement.
	flowTimeout = 3600
)

// inFamily is the IPv4 address itself, or an IPv6 address that ends in it.
func inFamily(f testenv.Family, a netip.Addr) netip.Addr {
	if f == testenv.IPv4 {
		return a
	}
	b := a.As4()
	return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
}

func crowdPublic(f testenv.Family, i int) netip.Addr  { return inFamily(f, numbered(100, i)) }
func crowdBackend(f testenv.Family, i int) netip.Addr { return inFamily(f, numbered(10, i)) }

// crowdState is the state that makes the flows.
func crowdState(f testenv.Family) nat.State {
	var s nat.State
	for i := range crowdAddresses {
		owner, backend := machine(i).key, crowdBackend(f, i)
		s.Addresses = append(s.Addresses, nat.Address{
			Public: crowdPublic(f, i), Owner: owner, Hosted: true,
			Whole: nat.Forward{Backend: backend, Owner: owner}, Attached: []netip.Addr{backend},
		})
	}
	return s
}

// removal takes the first addresses out of the state.
func removal(s nat.State, count int) (d nat.Delta) {
	for i := range count {
		d.Addresses = append(d.Addresses, nat.Change[nat.Address]{Old: &s.Addresses[i]})
	}
	return d
}

// filler makes flows in a namespace without a packet.
type filler struct {
	handle *netlink.Handle
	family testenv.Family
}

func newFiller(ns *testenv.NetNS, f testenv.Family) (*filler, error) {
	handle, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("conntrack in namespace %s: %w", ns.Name(), err)
	}
	return &filler{handle: handle, family: f}, nil
}

func (f *filler) close() { f.handle.Close() }

// fill makes those of the crowd's flows that belong to the first addresses.
func (f *filler) fill(addresses int) error {
	for i := range crowdFlows {
		if i%crowdAddresses < addresses {
			if err := f.create(i); err != nil {
				return fmt.Errorf("create flow %d: %w", i, err)
			}
		}
	}
	return nil
}

func (f *filler) create(i int) error {
	family := netlink.InetFamily(unix.AF_INET)
	if f.family == testenv.IPv6 {
		family = unix.AF_INET6
	}
	address := i % crowdAddresses
	client := inFamily(f.family, netip.AddrFrom4([4]byte{192, 0, 2, byte(i / crowdAddresses)})).AsSlice()
	return f.handle.ConntrackCreate(netlink.ConntrackTable, family, &netlink.ConntrackFlow{
		FamilyType: uint8(family), TimeOut: flowTimeout,
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: client, SrcPort: 4000,
			DstIP: crowdPublic(f.family, address).AsSlice(), DstPort: 80},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: crowdBackend(f.family, address).AsSlice(), SrcPort: 80,
			DstIP: client, DstPort: 4000},
	})
}
