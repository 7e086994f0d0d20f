// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// tenantTable exists only while there are tenants. It is apart from the other table because the library cannot write its one kind of
// expression (see zonePlaceholder), and so that nothing of it costs a node without tenants anything.
const tenantTable = "natplane_tenants"

// Tenants keeps the table of tenants. It is not safe for concurrent use.
type Tenants struct {
	// main is asked for what the kernel holds.
	main    *Table
	tenants nat.Tenants
	flags   nftables.TableFlags
	// sock writes, and owns the table.
	sock *netlink.Conn
}

// Tenants returns the keeper of the table of tenants. Nothing is written yet.
func (t *Table) Tenants(tenants nat.Tenants) *Tenants {
	return &Tenants{main: t, tenants: tenants, flags: t.flags}
}

// Close gives the ownership back; the table stays.
func (t *Tenants) Close() error {
	if t.sock == nil {
		return nil
	}
	sock := t.sock
	t.sock = nil
	return sock.Close()
}

// Sync makes the table what the tenants ask for, in one transaction, and reports whether it was something else.
func (t *Tenants) Sync() (changed bool, err error) {
	if t.tenants.None() {
		return t.main.RemoveTenants()
	}
	if t.sock == nil {
		if t.sock, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.main.netns}); err != nil {
			return false, fmt.Errorf("nftables socket: %w", err)
		}
	}
	// Takes a table that a process which is gone left behind. With other flags it cannot be taken, and is made anew below.
	err = t.send(func(c *nftables.Conn) error { c.AddTable(t.table()); return nil })
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return false, t.fail(err)
	}
	layout := newTenantLayout(t.tenants)
	same, err := t.holds(layout)
	if err != nil || same {
		return false, err
	}
	err = t.send(func(c *nftables.Conn) error {
		c.DelTable(t.table())
		c.AddTable(t.table())
		return layout.queue(c, t.table())
	})
	if err != nil {
		return false, t.fail(err)
	}
	return true, nil
}

// fail drops the connection, so that nothing of this exchange meets the next one.
func (t *Tenants) fail(err error) error {
	err = errors.Join(err, t.Close())
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("nftables table inet %s: %w: %w", tenantTable, ErrOwned, err)
	}
	return fmt.Errorf("nftables table inet %s: %w", tenantTable, err)
}

func (t *Tenants) table() *nftables.Table {
	return &nftables.Table{Name: tenantTable, Family: nftables.TableFamilyINet, Flags: t.flags}
}

// RemoveTenants removes the table of tenants and reports whether there was one.
func (t *Table) RemoveTenants() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return false, t.fail(err)
	}
	err = c.do(func() error {
		_, err := c.ListTableOfFamily(tenantTable, nftables.TableFamilyINet)
		return err
	})
	if isMissing(err) {
		return false, nil
	}
	if err == nil {
		c.DelTable(&nftables.Table{Name: tenantTable, Family: nftables.TableFamilyINet})
		err = c.do(c.Flush)
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: %w", ErrOwned, err)
	}
	if err != nil {
		t.broken, t.unsure = true, true
		return false, fmt.Errorf("nftables table inet %s: %w", tenantTable, err)
	}
	return true, nil
}

// holds reports whether the kernel has the table as it was written: every rule carries a sum of the layout in its comment, and nobody else
// may change an owned table. One that is not owned is written anew each time.
func (t *Tenants) holds(l layout) (bool, error) {
	if t.flags == 0 {
		return false, nil
	}
	t.main.mu.Lock()
	defer t.main.mu.Unlock()
	c, err := t.main.connect()
	if err != nil {
		return false, t.main.fail(err)
	}
	for _, ch := range l.chains {
		rules, err := readRules(c, ch.kernelChain(t.table()))
		if isMissing(err) {
			return false, nil
		}
		if err != nil {
			return false, t.main.fail(err)
		}
		if len(rules) != len(ch.rules) {
			return false, nil
		}
		for i, r := range rules {
			if commentOf(r) != ch.rules[i].comment {
				return false, nil
			}
		}
	}
	return true, nil
}
