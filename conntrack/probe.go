// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// filterSupport remembers, for each family and field, whether the kernel
// selects flows by address. It is tried and not derived from the version:
// kernels before 5.8 ignore the request and send everything, those before 5.19
// compare the addresses of the reply with nothing, and IPv6 addresses are
// compared the wrong way round at least up to 6.18 (ctnetlink_filter_match_tuple
// in nf_conntrack_netlink.c): all flows but the wanted ones.
type filterSupport struct {
	mu    sync.Mutex
	known map[filterKey]bool
}

type filterKey struct {
	field  Field
	family Family
}

// check returns nil when the kernel can serve the query and ErrNoFilter when
// not. A probe that could not be made, because the table is full for instance,
// is made again the next time.
func (s *filterSupport) check(ctx context.Context, n *Netlink, q Query) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := filterKey{q.Field, q.family()}
	works, ok := s.known[key]
	if !ok {
		var err error
		works, err = n.probe(ctx, key)
		if err != nil {
			return errors.Join(ErrNoFilter, err)
		}
		if s.known == nil {
			s.known = make(map[filterKey]bool)
		}
		s.known[key] = works
	}
	if !works {
		return ErrNoFilter
	}
	return nil
}

// probeZone is where the probe's two flows live: no packet gets there unless
// rules of the node use the last of the 65536 zones, and even then only one
// with these addresses would meet them.
const probeZone = 0xffff

// probe makes two flows, asks for one of them and expects just that one.
func (n *Netlink) probe(ctx context.Context, key filterKey) (bool, error) {
	wanted, other := probeFlow(key.family, 1), probeFlow(key.family, 2)
	defer func() {
		// What is left ends by its timeout.
		_ = n.forget(context.WithoutCancel(ctx), wanted)
		_ = n.forget(context.WithoutCancel(ctx), other)
	}()
	for _, f := range []Flow{wanted, other} {
		if err := n.create(ctx, f, probeTimeout); err != nil && !errors.Is(err, unix.EEXIST) {
			return false, fmt.Errorf("probe of the flow filter: %w", err)
		}
	}
	q := Query{Field: key.field, Addr: key.field.Of(wanted)}
	found, foreign := false, false
	err := n.dump(ctx, q, func(f Flow) {
		found = found || f.Orig == wanted.Orig && f.Zone == wanted.Zone
		foreign = foreign || !q.Matches(f)
	})
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
		return false, nil
	case err != nil:
		return false, err
	}
	return found && !foreign, nil
}

// probeTimeout is in seconds: longer than the dump of a large table.
const probeTimeout = 10

// probeFlow is a flow between addresses that are reserved for benchmarks and
// documentation (RFC 2544, RFC 3849), all four of them different.
func probeFlow(family Family, n byte) Flow {
	addr := func(i byte) netip.Addr {
		if family == IPv4 {
			return netip.AddrFrom4([4]byte{198, 19, 255, n*16 + i})
		}
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 0xff, 0xff, 14: n, 15: i})
	}
	return Flow{
		Zone:     probeZone,
		Protocol: nat.UDP,
		Orig:     Tuple{Src: addr(1), Dst: addr(2), SrcPort: 9, DstPort: 9},
		Reply:    Tuple{Src: addr(3), Dst: addr(4), SrcPort: 9, DstPort: 9},
		Status:   Confirmed,
	}
}

// create makes a flow that ends after timeout seconds.
func (n *Netlink) create(ctx context.Context, f Flow, timeout uint32) error {
	req, err := createRequest(f, timeout)
	if err != nil {
		return err
	}
	return n.with(ctx, func(conn *netlink.Conn) error {
		_, err := conn.Execute(req)
		return err
	})
}

func createRequest(f Flow, timeout uint32) (netlink.Message, error) {
	ae := netfilter.NewAttributeEncoder()
	encodeIdentity(ae, f)
	encodeTuple(ae, ctaTupleReply, f.Protocol, f.Reply)
	ae.Uint32(ctaStatus, uint32(f.Status))
	ae.Uint32(ctaTimeout, timeout)
	if f.Mark != 0 {
		ae.Uint32(ctaMark, f.Mark)
	}
	return request(msgNew, netlink.Acknowledge|netlink.Create|netlink.Excl, familyOf(f.Orig.Src), ae)
}

// forget deletes a flow of ours without its id, which only a dump would tell.
func (n *Netlink) forget(ctx context.Context, f Flow) error {
	ae := netfilter.NewAttributeEncoder()
	encodeIdentity(ae, f)
	req, err := request(msgDelete, netlink.Acknowledge, familyOf(f.Orig.Src), ae)
	if err != nil {
		return err
	}
	return n.with(ctx, func(conn *netlink.Conn) error {
		_, err := conn.Execute(req)
		return err
	})
}
