// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Changed returns the channel that Watch signals on. Signals coalesce: one stands for any number of changes.
func (t *Table) Changed() <-chan struct{} { return t.changed }

// Watch signals on Changed when anybody but this Table changed the table, or that of tenants, since Open, until the context ends. After a
// signal a Sync of both is due. A signal without a change is possible, when the kernel had to drop events or after an error of this Table.
// Where the table has an owner nobody else can change it, and Watch only waits. It may be called once.
func (t *Table) Watch(ctx context.Context) error {
	if t.events == nil {
		<-ctx.Done()
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = t.events.Close() })
	defer stop()
	foreign := ""
	for {
		messages, err := t.events.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS): // events were lost
			t.signal()
			continue
		case err != nil:
			return fmt.Errorf("nftables events: %w", err)
		}
		for i := range messages {
			foreign = t.event(&messages[i], foreign)
		}
	}
}

// dialEvents returns a socket that receives every change of the ruleset from now on. The monitor of the library cannot be
// used: it does not say which table an element belongs to, and parses everybody's objects.
func dialEvents(netns int) (*netlink.Conn, error) {
	sock, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("nftables events: %w", err)
	}
	if err := errors.Join(sock.SetReadBuffer(readBuffer), sock.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return nil, fmt.Errorf("nftables events: %w", errors.Join(err, sock.Close()))
	}
	return sock, nil
}

func (t *Table) signal() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// event looks at one event, and returns which table of ours a transaction of somebody else changed, or "". The event of the new generation
// ends a transaction and names the process.
func (t *Table) event(m *netlink.Message, foreign string) string {
	const generation = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	if m.Header.Type == generation {
		if foreign != "" {
			pid, name := attribute(m.Data, unix.NFTA_GEN_PROC_PID), attribute(m.Data, unix.NFTA_GEN_PROC_NAME)
			if len(pid) == 4 {
				t.log.Info("nftables: another process changed the table", "table", foreign,
					"process", string(bytes.TrimRight(name, "\x00")), "pid", binary.BigEndian.Uint32(pid))
			}
		}
		return ""
	}
	if port := m.Header.PID; port == t.port.Load() || port != 0 && port == t.tenantPort.Load() { // 0 is the kernel itself, or no port yet
		return foreign
	}
	name := aboutTable(m.Data)
	if name == "" {
		return foreign
	}
	t.signal()
	return name
}

// aboutTable returns which table of ours an event is about, it or something in it; "" for others. All events give the family in the header
// and the table in attribute 1.
func aboutTable(data []byte) string {
	if len(data) == 0 || data[0] != unix.NFPROTO_INET {
		return ""
	}
	switch name := string(bytes.TrimSuffix(attribute(data, unix.NFTA_TABLE_NAME), []byte{0})); name {
	case tableName, tenantTable:
		return name
	}
	return ""
}

// attribute returns the value of an attribute of an nftables message, nil when it has none.
func attribute(data []byte, kind uint16) []byte {
	const header = 4 // of the message (struct nfgenmsg), and of an attribute
	for data = data[min(header, len(data)):]; len(data) >= header; {
		length := int(binary.NativeEndian.Uint16(data))
		if length < header || length > len(data) {
			return nil
		}
		if binary.NativeEndian.Uint16(data[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER) == kind {
			return data[header:length]
		}
		data = data[min((length+3)&^3, len(data)):]
	}
	return nil
}
