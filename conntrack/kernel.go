// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// Messages and attributes of linux/netfilter/nfnetlink_conntrack.h about the table as a whole.
const (
	msgGetStatsCPU netfilter.MessageType = 4
	msgGetStats    netfilter.MessageType = 5

	ctaStatsInsertFailed = 9
	ctaStatsDrop         = 10
	ctaStatsEarlyDrop    = 11

	ctaStatsGlobalEntries = 1
	ctaStatsGlobalMax     = 2 // Linux 4.18
)

// KernelStats is what the kernel says about connection tracking in this network namespace, since it began.
type KernelStats struct {
	// Entries is the number of flows now, Limit the most that there may be (nf_conntrack_max; 0 where the kernel does not say).
	Entries, Limit uint64
	// InsertFailed counts first packets that were dropped because their flow could not be told from another: no port of a shared address
	// was left towards that peer, two had been given one at the same moment, or the protocol has no ports.
	InsertFailed uint64
	// Dropped counts packets that were dropped for any reason of connection tracking, a full table among them.
	Dropped uint64
	// EarlyDropped counts flows that gave way to new ones in a full table.
	EarlyDropped uint64
}

// KernelStats reads the counters of all processors.
func (n *Netlink) KernelStats(ctx context.Context) (KernelStats, error) {
	var s KernelStats
	err := n.with(ctx, func(conn *netlink.Conn) error {
		err := perProcessor(conn, func(attr uint16, v uint32) {
			switch attr {
			case ctaStatsInsertFailed:
				s.InsertFailed += uint64(v)
			case ctaStatsDrop:
				s.Dropped += uint64(v)
			case ctaStatsEarlyDrop:
				s.EarlyDropped += uint64(v)
			}
		})
		if err != nil {
			return err
		}
		s.Entries, s.Limit, err = globalStats(conn)
		return err
	})
	if err != nil {
		return KernelStats{}, fmt.Errorf("counters of connection tracking: %w", err)
	}
	return s, nil
}

func perProcessor(conn *netlink.Conn, visit func(uint16, uint32)) error {
	req, err := request(msgGetStatsCPU, netlink.Dump, BothFamilies, netfilter.NewAttributeEncoder())
	if err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	if _, err := conn.Send(req); err != nil {
		return err
	}
	replies, err := conn.Receive()
	if err != nil {
		return err
	}
	for _, m := range replies {
		if err := eachCounter(m, visit); err != nil {
			return err
		}
	}
	return nil
}

func eachCounter(m netlink.Message, visit func(uint16, uint32)) error {
	_, ad, err := netfilter.DecodeNetlink(m)
	if err != nil {
		return err
	}
	for ad.Next() {
		visit(ad.Type(), ad.Uint32())
	}
	return ad.Err()
}

// globalStats reads the socket itself: the kernel marks its one answer as the first of several (NLM_F_MULTI in
// ctnetlink_stat_ct_fill_info), and the library would wait for the others for ever.
func globalStats(conn *netlink.Conn) (entries, limit uint64, err error) {
	req, err := request(msgGetStats, 0, BothFamilies, netfilter.NewAttributeEncoder())
	if err != nil {
		return 0, 0, err
	}
	if _, err := conn.Send(req); err != nil {
		return 0, 0, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	buf, size, readErr := make([]byte, 4096), 0, error(nil)
	err = raw.Read(func(fd uintptr) bool {
		size, _, readErr = unix.Recvfrom(int(fd), buf, 0)
		return !errors.Is(readErr, unix.EAGAIN)
	})
	var m netlink.Message
	if err := errors.Join(err, readErr, m.UnmarshalBinary(buf[:max(size, 0)])); err != nil {
		return 0, 0, err
	}
	err = eachCounter(m, func(attr uint16, v uint32) {
		switch attr {
		case ctaStatsGlobalEntries:
			entries = uint64(v)
		case ctaStatsGlobalMax:
			limit = uint64(v)
		}
	})
	return entries, limit, err
}
