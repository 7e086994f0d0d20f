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

// Tenant is an interface behind which private sources may have addresses that are in use elsewhere too. Tenants with one table are one.
type Tenant struct {
	Interface string
	// Table is the routing table that leads back to the tenant. Its number is the tenant's connection-tracking zone as well, so that
	// what an agent did survives it without anything written down.
	Table uint16
}

// Tenants are all of them; the zero value is none.
type Tenants struct {
	List []Tenant
	// MarkMask are the bits of the packet mark that replies carry the table in.
	MarkMask uint32
}

// None reports whether there are no tenants.
func (t Tenants) None() bool { return len(t.List) == 0 }

// Mark is what a reply to a tenant is marked with.
func (t Tenants) Mark(table uint16) uint32 { return uint32(table) << bits.TrailingZeros32(t.MarkMask) }

// Tables lists the tables, sorted.
func (t Tenants) Tables() []uint16 {
	var tables []uint16
	for _, tenant := range t.List {
		tables = append(tables, tenant.Table)
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// Interfaces lists the interfaces, sorted.
func (t Tenants) Interfaces() []string {
	var names []string
	for _, tenant := range t.List {
		names = append(names, tenant.Interface)
	}
	slices.Sort(names)
	return names
}

// ParseTenant reads "INTERFACE=TABLE".
func ParseTenant(s string) (Tenant, error) {
	name, number, ok := strings.Cut(s, "=")
	table, err := strconv.ParseUint(number, 10, 16)
	if !ok || name == "" || len(name) > 15 || err != nil { // IFNAMSIZ is 16 with the closing zero
		return Tenant{}, fmt.Errorf("%q is not INTERFACE=TABLE with a table from 1 to 65535", s)
	}
	return Tenant{Interface: name, Table: uint16(table)}, nil
}

func (t Tenants) validate() error {
	if t.None() {
		return nil
	}
	var errs []error
	width := bits.Len32(t.MarkMask) - bits.TrailingZeros32(t.MarkMask)
	if t.MarkMask == 0 || bits.OnesCount32(t.MarkMask) != width {
		return fmt.Errorf("--tenant-mark-mask %#x: the bits are not next to each other", t.MarkMask)
	}
	seen := map[string]struct{}{}
	for _, tenant := range t.List {
		if _, twice := seen[tenant.Interface]; twice {
			errs = append(errs, fmt.Errorf("--tenant-interface %s is given twice", tenant.Interface))
		}
		seen[tenant.Interface] = struct{}{}
		switch {
		// The tables of the kernel itself: default, main and local (RT_TABLE_ of linux/rtnetlink.h).
		case tenant.Table == 0, tenant.Table >= 253 && tenant.Table <= 255:
			errs = append(errs, fmt.Errorf("--tenant-interface %s: table %d is no tenant's", tenant.Interface, tenant.Table))
		case bits.Len16(tenant.Table) > width:
			errs = append(errs, fmt.Errorf("--tenant-interface %s: table %d does not fit into --tenant-mark-mask %#x", tenant.Interface, tenant.Table, t.MarkMask))
		}
	}
	return errors.Join(errs...)
}
