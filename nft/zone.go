// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The library knows `ct zone`, but cannot say of which direction. It can for the address, so that is what rules ask for, and the request is
// corrected on its way. Remove when expr.Ct sends the direction with CtKeyZONE.

// loadZone is `ct original zone`, loadReplyZone `ct reply zone`, setZone `ct original zone set`.
func loadZone(reg uint32) match      { return match{zonePlaceholder(reg, expr.CtDirOriginal, false)} }
func loadReplyZone(reg uint32) match { return match{zonePlaceholder(reg, expr.CtDirReply, false)} }
func setZone(reg uint32) expr.Any    { return zonePlaceholder(reg, expr.CtDirOriginal, true) }

func zonePlaceholder(reg, direction uint32, set bool) *expr.Ct {
	return &expr.Ct{Key: expr.CtKeySRC, Direction: direction, Register: reg, SourceRegister: set}
}

// correct puts the zone in the place of the placeholders, and has nft read the anonymous sets as what they are: numbers and names in the byte
// order of this machine, which the library says of named sets only.
func correct(data []byte) ([]byte, error) {
	key := func(k expr.CtKey) ([]byte, error) {
		return netlink.MarshalAttributes([]netlink.Attribute{
			{Type: unix.NFTA_CT_KEY, Data: binary.BigEndian.AppendUint32(nil, uint32(k))},
		})
	}
	address, err := key(expr.CtKeySRC)
	if err != nil {
		return nil, err
	}
	zone, err := key(expr.CtKeyZONE)
	if err != nil {
		return nil, err
	}
	for _, placeholder := range []expr.Any{loadZone(reg1)[0], loadReplyZone(reg1)[0], setZone(reg1)} {
		from, err := expr.Marshal(unix.NFPROTO_INET, placeholder)
		if err != nil {
			return nil, err
		}
		data = bytes.ReplaceAll(data, from, bytes.Replace(from, address, zone, 1))
	}
	order := func(data []byte) ([]byte, error) {
		return netlink.MarshalAttributes([]netlink.Attribute{{Type: unix.NFTA_SET_USERDATA, Data: data}})
	}
	big, err := order(userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian))
	if err != nil {
		return nil, err
	}
	host := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, hostEndian)
	verdicts := binary.BigEndian.AppendUint32(nil, unix.NFT_DATA_VERDICT)
	if !bytes.Contains(data, verdicts) { // a verdict has no byte order, and nft aborts over one
		host = userdata.AppendUint32(host, userdata.NFTNL_UDATA_SET_DATABYTEORDER, hostEndian)
	}
	own, err := order(host)
	if err != nil {
		return nil, err
	}
	return bytes.ReplaceAll(data, big, own), nil
}

// The byte orders of nft (BYTEORDER_ in its include/datatype.h).
const (
	hostEndian = 1
	bigEndian  = 2
)

// record returns what the library would send.
func record(queue func(*nftables.Conn) error) ([]netlink.Message, error) {
	var sent []netlink.Message
	c, err := nftables.New(nftables.WithTestDial(func(req []netlink.Message) ([]netlink.Message, error) {
		sent = append(sent, req...)
		return nil, nil
	}))
	if err != nil {
		return nil, err
	}
	if err := queue(c); err != nil {
		return nil, err
	}
	return sent, c.Flush()
}

// send sends one transaction and waits for the kernel's word on it.
func (t *Tenants) send(queue func(*nftables.Conn) error) error {
	messages, err := record(queue)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	if len(messages) < 3 {
		return errors.New("compose: no transaction")
	}
	for i := range messages {
		m := &messages[i]
		m.Header.Length, m.Header.Sequence, m.Header.PID = 0, 0, 0 // the connection gives its own
		m.Header.Flags &^= netlink.Echo | netlink.Acknowledge
		if m.Data, err = correct(m.Data); err != nil {
			return fmt.Errorf("compose: %w", err)
		}
	}
	last := len(messages) - 2 // before the end of the batch
	messages[last].Header.Flags |= netlink.Acknowledge
	if err := t.sock.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	if messages, err = t.sock.SendMessages(messages); err != nil {
		return err
	}
	for {
		answers, err := t.sock.Receive()
		if err != nil {
			return err
		}
		for _, a := range answers {
			if a.Header.Sequence == messages[last].Header.Sequence {
				return nil
			}
		}
	}
}
