// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/natplane/natplane/nat"
)

// Two forms of ranges exist in the kernel. A plain interval set holds the first address, and the address after the last one
// marked as an end; nothing marks the end of a range that reaches the last address of all. A concatenated set holds a first
// and a last key in one element. In a concatenation every field starts at a multiple of 4 bytes.

// encoder turns elements into those of the library. Keys are cut from one buffer, to allocate once for many.
type encoder struct {
	defs []setDef
	buf  []byte
}

// bufferSize is the memory that keys and values are cut from at a time, in bytes.
const bufferSize = 1 << 14

// grow makes room for a key, so that append does not copy the ones before it.
func (e *encoder) grow() int {
	const longest = 64 // above the longest key, address . protocol . port . address of IPv6 with 40 bytes
	if cap(e.buf)-len(e.buf) < longest {
		e.buf = make([]byte, 0, bufferSize)
	}
	return len(e.buf)
}

func (e *encoder) cut(start int) []byte { return e.buf[start:len(e.buf):len(e.buf)] }

// append appends the one or two library elements of el.
func (e *encoder) append(out []nftables.SetElement, el *element) []nftables.SetElement {
	def := &e.defs[el.set]
	if def.interval && len(def.key) == 1 {
		return e.appendInterval(out, el)
	}
	se := nftables.SetElement{Key: e.key(def, &el.key, el.from), Comment: el.comment}
	if def.interval {
		se.KeyEnd = e.key(def, &el.key, el.to)
	}
	if len(def.value) > 0 {
		se.Val = e.value(def, el.value)
	}
	return append(out, se)
}

func (e *encoder) appendInterval(out []nftables.SetElement, el *element) []nftables.SetElement {
	end := el.to.Next()
	out = append(out, nftables.SetElement{Key: e.address(el.from), Comment: el.comment, IntervalOpen: !end.IsValid()})
	if end.IsValid() {
		out = append(out, nftables.SetElement{Key: e.address(end), IntervalEnd: true})
	}
	return out
}

// key encodes a key; client is the address of its second address field.
func (e *encoder) key(def *setDef, k *key, client netip.Addr) []byte {
	start := e.grow()
	next := k.addr
	for _, p := range def.key {
		switch p {
		case address:
			e.putAddress(next)
			next = client
		case protocol:
			e.buf = append(e.buf, byte(k.proto), 0, 0, 0)
		case port:
			e.putPort(k.port)
		case link:
			var name [16]byte // IFNAMSIZ
			copy(name[:], k.link)
			e.buf = append(e.buf, name[:]...)
		}
	}
	return e.cut(start)
}

func (e *encoder) value(def *setDef, v netip.AddrPort) []byte {
	start := e.grow()
	e.putAddress(v.Addr())
	if len(def.value) > 1 {
		e.putPort(v.Port())
	}
	return e.cut(start)
}

func (e *encoder) address(a netip.Addr) []byte {
	start := e.grow()
	e.putAddress(a)
	return e.cut(start)
}

func (e *encoder) putAddress(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		e.buf = append(e.buf, b[:]...)
		return
	}
	b := a.As16()
	e.buf = append(e.buf, b[:]...)
}

func (e *encoder) putPort(p uint16) {
	e.buf = binary.BigEndian.AppendUint16(e.buf, p)
	e.buf = append(e.buf, 0, 0)
}

// decode returns the elements of a set as the kernel gave them, as far as they can be read. It reports false when the set holds
// something that this package would not have written in that form: the set has to be written anew then.
func (e *encoder) decode(s setID, raw []nftables.SetElement) ([]element, bool) {
	def := &e.defs[s]
	if def.interval && len(def.key) == 1 {
		return e.decodeIntervals(s, raw)
	}
	es := make([]element, 0, len(raw))
	var again []nftables.SetElement
	ours := true
	for i := range raw {
		el, ok := decodeElement(def, s, &raw[i])
		if !ok {
			ours = false
			continue
		}
		es = append(es, el)
		again = e.append(again[:0], &el)
		ours = ours && same(&again[0], &raw[i])
	}
	return es, ours
}

func decodeElement(def *setDef, s setID, raw *nftables.SetElement) (element, bool) {
	el := element{key: key{set: s}, comment: raw.Comment}
	ok := true
	k, end := raw.Key, raw.KeyEnd
	cut := func(n int) (b, last []byte) {
		if len(k) < n || (def.interval && len(end) < n) {
			ok = false
			return make([]byte, n), make([]byte, n)
		}
		b, k = k[:n], k[n:]
		if def.interval {
			last, end = end[:n], end[n:]
		}
		return b, last
	}
	for i, p := range def.key {
		switch p {
		case address:
			b, last := cut(def.addrLen())
			if i == 0 {
				el.addr, _ = netip.AddrFromSlice(b)
			} else {
				el.from, _ = netip.AddrFromSlice(b)
				el.to, _ = netip.AddrFromSlice(last)
			}
		case protocol:
			b, _ := cut(4)
			el.proto = nat.Protocol(b[0])
		case port:
			b, _ := cut(4)
			el.port = binary.BigEndian.Uint16(b)
		case link:
			b, _ := cut(16)
			name, _, _ := bytes.Cut(b, []byte{0})
			el.link = string(name)
		}
	}
	if len(def.value) > 0 {
		var valueOK bool
		el.value, valueOK = def.decodeValue(raw.Val)
		ok = ok && valueOK
	}
	return el, ok
}

func (d *setDef) addrLen() int {
	if d.ipv6 {
		return 16
	}
	return 4
}

func (d *setDef) decodeValue(v []byte) (netip.AddrPort, bool) {
	n := d.addrLen()
	if len(v) < n || (len(d.value) > 1 && len(v) < n+2) {
		return netip.AddrPort{}, false
	}
	a, _ := netip.AddrFromSlice(v[:n])
	if len(d.value) == 1 {
		return netip.AddrPortFrom(a, 0), true
	}
	return netip.AddrPortFrom(a, binary.BigEndian.Uint16(v[n:])), true
}

// same reports whether the kernel holds what we would write. Counters and timeouts are not ours.
func same(ours, kernel *nftables.SetElement) bool {
	return bytes.Equal(ours.Key, kernel.Key) && bytes.Equal(ours.KeyEnd, kernel.KeyEnd) && bytes.Equal(ours.Val, kernel.Val) &&
		kernel.Counter == nil && kernel.Timeout == 0
}

// decodeIntervals pairs first addresses with ends. The kernel returns them in an order of its own.
func (e *encoder) decodeIntervals(s setID, raw []nftables.SetElement) ([]element, bool) {
	sorted := slices.Clone(raw)
	slices.SortFunc(sorted, func(a, b nftables.SetElement) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		return rank(a) - rank(b)
	})
	var es []element
	open := false
	for i := range sorted {
		a, ok := netip.AddrFromSlice(sorted[i].Key)
		switch {
		case !ok || sorted[i].Counter != nil || sorted[i].IntervalEnd == !open && !leadingEnd(a, &sorted[i]):
			return nil, false
		case !sorted[i].IntervalEnd:
			es = append(es, element{key: key{set: s, from: a}, comment: sorted[i].Comment})
			open = true
		case open:
			es[len(es)-1].to = a.Prev()
			open = false
		}
	}
	if open {
		es[len(es)-1].to = lastAddr(es[len(es)-1].from)
	}
	return es, true
}

// rank puts the end of a range before the start of an adjacent one.
func rank(e nftables.SetElement) int {
	if e.IntervalEnd {
		return 0
	}
	return 1
}

// leadingEnd is an end at the lowest address, which ends nothing: nft puts one into every interval set that it loads.
func leadingEnd(a netip.Addr, e *nftables.SetElement) bool { return e.IntervalEnd && a.IsUnspecified() }

func lastAddr(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{255, 255, 255, 255})
	}
	var b [16]byte
	for i := range b {
		b[i] = 255
	}
	return netip.AddrFrom16(b)
}
