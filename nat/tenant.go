// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// DefaultTenantMarkMask has room for tables up to 255.
const DefaultTenantMarkMask = 0x00ff0000

// maxInterfaceName is IFNAMSIZ without the closing zero.
const maxInterfaceName = 15

// TenantFlag names interfaces behind which private sources may have addresses that are in use elsewhere too.
type TenantFlag struct {
	// Interface is a name, or with a "*" at its end what names begin with.
	Interface string
	// Table is the routing table that leads back to them, which makes them one tenant; 0 has it found for each interface.
	Table uint16
}

// Prefix is what the names begin with; false for a flag that gives the whole name.
func (f TenantFlag) Prefix() (string, bool) { return strings.CutSuffix(f.Interface, "*") }

// String is the flag as it is written.
func (f TenantFlag) String() string {
	if f.Table == 0 {
		return f.Interface
	}
	return fmt.Sprintf("%s=%d", f.Interface, f.Table)
}

func (f TenantFlag) matches(name string) bool {
	prefix, glob := f.Prefix()
	return glob && strings.HasPrefix(name, prefix) || f.Interface == name
}

// ParseTenant reads "INTERFACE" or "INTERFACE=TABLE".
func ParseTenant(s string) (TenantFlag, error) {
	name, number, explicit := strings.Cut(s, "=")
	f := TenantFlag{Interface: name}
	if explicit {
		table, err := strconv.ParseUint(number, 10, 16)
		if err != nil || table == 0 {
			return TenantFlag{}, fmt.Errorf("%q is not INTERFACE or INTERFACE=TABLE with a table from 1 to 65535", s)
		}
		f.Table = uint16(table)
	}
	return f, f.checkName()
}

func (f TenantFlag) checkName() error {
	name, glob := f.Prefix()
	switch {
	case strings.ContainsAny(name, "*?[") || glob && name == "":
		return fmt.Errorf("interface %q: only a * at the end, after at least one character, stands for others", f.Interface)
	case name == "" || len(name) > maxInterfaceName || strings.ContainsAny(name, "/ \t\n\""):
		return fmt.Errorf("%q is no name of an interface", f.Interface)
	}
	return nil
}

// Tenants are what the operator says about them; the zero value is none.
type Tenants struct {
	// Flags are in the order that they were given in.
	Flags []TenantFlag
	// MarkMask are the bits of the packet mark that replies carry the table in.
	MarkMask uint32
}

// None reports whether there are no tenants.
func (t Tenants) None() bool { return len(t.Flags) == 0 }

// Mark is what a reply to a tenant is marked with.
func (t Tenants) Mark(table uint16) uint32 { return uint32(table) << bits.TrailingZeros32(t.MarkMask) }

// flagOf returns the flag that an interface is of: the one with its name, else the first that matches.
func (t Tenants) flagOf(name string) (TenantFlag, bool) {
	i := slices.IndexFunc(t.Flags, func(f TenantFlag) bool { return f.Interface == name })
	if i < 0 {
		i = slices.IndexFunc(t.Flags, func(f TenantFlag) bool { return f.matches(name) })
	}
	if i < 0 {
		return TenantFlag{}, false
	}
	return t.Flags[i], true
}

func (t Tenants) validate() error {
	if t.None() {
		return nil
	}
	if t.MarkMask == 0 || bits.OnesCount32(t.MarkMask) != t.markWidth() {
		return fmt.Errorf("--tenant-mark-mask %#x: the bits are not next to each other", t.MarkMask)
	}
	var errs []error
	seen := map[string]struct{}{}
	for _, f := range t.Flags {
		if _, twice := seen[f.Interface]; twice {
			errs = append(errs, fmt.Errorf("--tenant-interface %s is given twice", f.Interface))
		}
		seen[f.Interface] = struct{}{}
		if err := f.checkName(); err != nil {
			errs = append(errs, fmt.Errorf("--tenant-interface: %w", err))
		}
		if why := t.refuses(uint32(f.Table)); f.Table != 0 && why != "" {
			errs = append(errs, fmt.Errorf("--tenant-interface %s: table %d %s", f.Interface, f.Table, why))
		}
	}
	return errors.Join(errs...)
}

func (t Tenants) markWidth() int { return bits.Len32(t.MarkMask) - bits.TrailingZeros32(t.MarkMask) }

// maxZone is the largest zone of connection tracking.
const maxZone = 65535

// refuses says why a routing table cannot be a tenant's, "" when it can.
func (t Tenants) refuses(table uint32) string {
	switch {
	// The tables of the kernel itself: default, main and local (RT_TABLE_ of linux/rtnetlink.h).
	case table == 0, table >= 253 && table <= 255:
		return "is no tenant's"
	case bits.Len32(table) > t.markWidth():
		return fmt.Sprintf("does not fit into --tenant-mark-mask %#x", t.MarkMask)
	case table > maxZone:
		return fmt.Sprintf("is above %d", maxZone)
	}
	return ""
}
