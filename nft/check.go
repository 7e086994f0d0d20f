// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// The checks keep a record that the kernel would refuse, or that would mean something else there, out of a transaction: one
// refused element would take all others with it. Package nat makes no such record.

func checkAddress(a *nat.Address) error {
	if err := checkAddr(a.Public, a.Public.Is4()); err != nil {
		return fmt.Errorf("public address %v of %s: %w", a.Public, a.Owner, err)
	}
	if err := checkForwards(a); err != nil {
		return fmt.Errorf("public address %v of %s: %w", a.Public, a.Owner, err)
	}
	return nil
}

func checkForwards(a *nat.Address) error {
	if a.Whole.Active() && (a.Echo.Active() || len(a.Ports) > 0) {
		return errors.New("forwards both the whole address and ports")
	}
	is4 := a.Public.Is4()
	for _, f := range []*nat.Forward{&a.Whole, &a.Echo} {
		if !f.Active() {
			continue
		}
		if err := checkTarget(f.Backend, f.Sources, is4); err != nil {
			return fmt.Errorf("forward of %s: %w", f.Owner, err)
		}
	}
	for i := range a.Ports {
		if err := checkPort(a.Ports, i, is4); err != nil {
			return fmt.Errorf("port %v/%d of %s: %w", a.Ports[i].Protocol, a.Ports[i].Port, a.Ports[i].Owner, err)
		}
	}
	return nil
}

func checkTarget(backend netip.Addr, s nat.Sources, is4 bool) error {
	if err := checkAddr(backend, is4); err != nil {
		return fmt.Errorf("backend: %w", err)
	}
	if !s.Restricted {
		return nil
	}
	var before nat.Range
	for _, r := range s.Allowed {
		if err := checkRange(r, is4, before); err != nil {
			return fmt.Errorf("source range: %w", err)
		}
		before = r
	}
	return nil
}

func checkPort(ports []nat.Port, i int, is4 bool) error {
	p := &ports[i]
	switch p.Protocol {
	case nat.TCP, nat.UDP, nat.SCTP:
	default:
		return fmt.Errorf("protocol %d has no ports", uint8(p.Protocol))
	}
	if p.Port == 0 || p.Target.Port() == 0 {
		return errors.New("port 0")
	}
	if i > 0 && ports[i-1].Protocol == p.Protocol && ports[i-1].Port == p.Port {
		return errors.New("given twice")
	}
	return checkTarget(p.Target.Addr(), p.Sources, is4)
}

func checkBackend(b *nat.Backend) error {
	if err := checkAddr(b.Addr, b.Addr.Is4()); err != nil {
		return fmt.Errorf("backend %v of %s: %w", b.Addr, b.Owner, err)
	}
	if !b.Primary.IsValid() {
		return nil
	}
	if err := checkAddr(b.Primary, b.Addr.Is4()); err != nil {
		return fmt.Errorf("backend %v of %s: primary: %w", b.Addr, b.Owner, err)
	}
	return nil
}

func checkAddr(a netip.Addr, is4 bool) error {
	switch {
	case !a.IsValid():
		return errors.New("no address")
	case a.Is4In6():
		return fmt.Errorf("%v is IPv4 written as IPv6", a)
	case a.Zone() != "":
		return fmt.Errorf("%v has a zone", a)
	case a.Is4() != is4:
		return fmt.Errorf("%v is of the other family", a)
	}
	return nil
}

// checkRange wants r after the range before it, of which there is none when that is the zero value.
func checkRange(r nat.Range, is4 bool, before nat.Range) error {
	if err := errors.Join(checkAddr(r.From, is4), checkAddr(r.To, is4)); err != nil {
		return err
	}
	if r.To.Less(r.From) {
		return fmt.Errorf("%v-%v is empty", r.From, r.To)
	}
	if before.To.IsValid() && !before.To.Less(r.From) {
		return fmt.Errorf("%v-%v overlaps or is out of order", r.From, r.To)
	}
	return nil
}

// checkLink is the kernel's rule for names of interfaces (dev_valid_name).
func checkLink(name string) error {
	if name == "" || len(name) >= unix.IFNAMSIZ || name == "." || name == ".." || strings.ContainsAny(name, "/: \t\n\v\f\r\x00\"") {
		return fmt.Errorf("%q is no name of an interface", name)
	}
	return nil
}
