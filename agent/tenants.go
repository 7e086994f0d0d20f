// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
)

// An interface of a tenant lets connections in only while two more things hold: tenant_if of the main table names it, or a tenant could
// leave with the address of a machine that has its private one, and the routing rule of its table leads replies back, or they would go to
// whoever has the address in the main table. So what closes is closed before the main table changes, and what opens is opened after it.

// apply writes the differences, of the main table and of tenants.
func (l *loop) apply(delta nat.Delta) (nft.Result, error) {
	if l.config.Tenants.None() || delta.Host == nil || delta.Host.Old == nil {
		result, err := l.table.Apply(delta)
		if err == nil {
			l.auditor.Commit(delta)
		}
		return result, err
	}
	if _, err := l.tenants.Apply(delta.Host.Old.KeepTenants(*delta.Host.New)); err != nil {
		return nft.Result{}, err
	}
	result, err := l.table.Apply(delta)
	if err != nil {
		return result, err
	}
	l.auditor.Commit(delta)
	return result, l.openTenants(*delta.Host.New, l.tenants.Apply)
}

// openTenants lets tenants in, and leads their replies back; without tenants it removes what an agent with some left behind.
func (l *loop) openTenants(h nat.Host, write func(nat.Host) (bool, error)) error {
	if len(h.TenantTables) > 0 {
		if err := l.node.AddTenantRules(h.TenantTables); err != nil {
			return err
		}
	}
	changed, err := write(h)
	if err != nil {
		return err
	}
	if err := l.node.KeepTenantRules(h.TenantTables); err != nil {
		return err
	}
	l.tellTenants(h.Tenants, changed)
	return nil
}

// tellTenants logs once which interfaces are closed, and why.
func (l *loop) tellTenants(list []nat.Tenant, changed bool) {
	open, closed := 0, map[string]string{}
	for _, t := range list {
		if t.Open() {
			open++
		}
		if t.Closed == "" {
			continue
		}
		closed[t.Interface] = t.Closed
		if l.closed[t.Interface] != t.Closed {
			l.log.Warn("an interface of a tenant is closed", "interface", t.Interface, "reason", t.Closed,
				"remedy", "=TABLE, a VRF, or ip rule add iif "+t.Interface+" lookup TABLE")
		}
	}
	l.closed = closed
	if changed {
		l.log.Info("programmed tenants", "open", open, "closed", len(closed))
	}
}
