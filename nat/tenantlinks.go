// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"slices"
)

// TenantLink is what the kernel says about an interface that may be a tenant's.
type TenantLink struct {
	Name string
	// Outside is true for an uplink and for the loopback interface.
	Outside bool
	// VRF is the table of the VRF that the interface is in, 0 without one, and Within that one's device; "" when it is the device.
	VRF    uint32
	Within string
	// Rule4 and Rule6 are the tables that the first routing rule for what arrives on it looks up, 0 without such a rule.
	Rule4, Rule6 uint32
}

// Tenant is an interface that a flag is about. Tenants with one table are one.
type Tenant struct {
	Interface string
	// Table is the routing table that leads back to the tenant. Its number is the tenant's connection-tracking zone as well, so that
	// what an agent did survives it without anything written down. 0 while the interface is no tenant's.
	Table uint16
	// Outside is true for an uplink that a flag happens to match, and does not name with a table: it is left alone.
	Outside bool
	// Closed says why nothing that arrives is let in, where neither of the above is so.
	Closed string
}

// Open reports whether connections may begin there.
func (t Tenant) Open() bool { return t.Table != 0 }

// Resolve says of what tenant the interfaces are, sorted by name: those that a flag matches, and those that one names with a table,
// whether they exist or not.
func (t Tenants) Resolve(links []TenantLink) []Tenant {
	var list []Tenant
	within := map[string]Tenant{}
	for _, l := range links {
		f, ok := t.flagOf(l.Name)
		if !ok {
			continue
		}
		tenant := t.resolve(f, l)
		list = append(list, tenant)
		if first, taken := within[l.Within]; tenant.Open() && l.Within != "" && (!taken || tenant.Table < first.Table) {
			within[l.Within] = Tenant{Interface: l.Within, Table: tenant.Table}
		}
	}
	list = addVRFs(list, links, within)
	for _, f := range t.Flags {
		if _, glob := f.Prefix(); !glob && f.Table != 0 {
			list = append(list, Tenant{Interface: f.Interface, Table: f.Table})
		}
	}
	slices.SortFunc(list, func(a, b Tenant) int { return cmp.Compare(a.Interface, b.Interface) })
	return slices.Compact(list)
}

// addVRFs adds the devices of the VRFs that tenants are in: from routing on a packet is one that came by the device, and may no more take the
// address of a machine, or be dropped as one of nobody's, than by its interface. What is open already, or leads outside, stays what it is.
func addVRFs(list []Tenant, links []TenantLink, within map[string]Tenant) []Tenant {
	for _, l := range links {
		device, ok := within[l.Name]
		if !ok || l.Outside {
			continue
		}
		i := slices.IndexFunc(list, func(t Tenant) bool { return t.Interface == l.Name })
		switch {
		case i < 0:
			list = append(list, device)
		case !list[i].Open():
			list[i] = device
		}
	}
	return list
}

func (t Tenants) resolve(f TenantFlag, l TenantLink) Tenant {
	tenant := Tenant{Interface: l.Name}
	if _, glob := f.Prefix(); l.Outside && (glob || f.Table == 0) {
		// A careless flag must not take the node off the network.
		tenant.Outside = true
		return tenant
	}
	if f.Table != 0 {
		tenant.Table = f.Table
		return tenant
	}
	table, from := l.VRF, "its VRF"
	if table == 0 {
		table, from = cmp.Or(l.Rule4, l.Rule6), "the routing rule for it"
	}
	switch why := t.refuses(table); {
	case table == 0:
		tenant.Closed = "no routing table is known to lead back to it"
	case l.VRF == 0 && l.Rule4 != l.Rule6 && l.Rule4 != 0 && l.Rule6 != 0:
		tenant.Closed = fmt.Sprintf("routing rules name table %d for IPv4 and table %d for IPv6", l.Rule4, l.Rule6)
	case why != "":
		tenant.Closed = fmt.Sprintf("%s names table %d, which %s", from, table, why)
	default:
		tenant.Table = uint16(table)
	}
	return tenant
}

// Tables lists the tables of all tenants, sorted: those of the list, and those of flags, which are tenants' even while none of their
// interfaces exists.
func (t Tenants) Tables(list []Tenant) []uint16 {
	var tables []uint16
	for _, f := range t.Flags {
		if f.Table != 0 {
			tables = append(tables, f.Table)
		}
	}
	for _, tenant := range list {
		if tenant.Open() {
			tables = append(tables, tenant.Table)
		}
	}
	slices.Sort(tables)
	return slices.Compact(tables)
}

// takeTenants follows the interfaces of tenants, which only the host's record depends on.
func (e *Engine) takeTenants(facts Facts, d *dirty) {
	if slices.Equal(facts.Tenants, e.facts.Tenants) {
		return
	}
	e.facts.Tenants = slices.Clone(facts.Tenants)
	d.host = true
}

func (e *Engine) settleTenants(h *Host) {
	h.Tenants, h.TenantTables = e.facts.Tenants, e.config.Tenants.Tables(e.facts.Tenants)
}

// KeepTenants returns what of the record both have: with it no tenant is let in that next does not let in.
func (h Host) KeepTenants(next Host) Host {
	h.Tenants = slices.DeleteFunc(slices.Clone(h.Tenants), func(t Tenant) bool { return !slices.Contains(next.Tenants, t) })
	h.TenantTables = slices.DeleteFunc(slices.Clone(h.TenantTables), func(t uint16) bool { return !slices.Contains(next.TenantTables, t) })
	return h
}
