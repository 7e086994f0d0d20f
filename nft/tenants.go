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
	netns   int
	tenants nat.Tenants
	flags   nftables.TableFlags
	sock    *netlink.Conn
}

// OpenTenants returns the keeper of the table of tenants; owned is whether the kernel can protect a table. Nothing is written yet.
func OpenTenants(netns int, tenants nat.Tenants, owned bool) *Tenants {
	t := &Tenants{netns: netns, tenants: tenants}
	if owned {
		t.flags = nftables.TableFlagOwner | nftables.TableFlagPersist
	}
	return t
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
		return t.remove()
	}
	if t.sock == nil {
		if t.sock, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.netns}); err != nil {
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

// remove deletes the table; that there is none is no error.
func (t *Tenants) remove() (bool, error) {
	c, err := dial(t.netns)
	if err != nil {
		return false, err
	}
	c.DelTable(t.table())
	err = c.do(c.Flush)
	closed := c.close()
	if isMissing(err) {
		return false, closed
	}
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("%w: %w", ErrOwned, err)
	}
	if err = errors.Join(err, closed); err != nil {
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
	c, err := dial(t.netns)
	if err != nil {
		return false, err
	}
	defer func() { _ = c.close() }() // it was only read
	for _, ch := range l.chains {
		rules, err := readRules(c, ch.kernelChain(t.table()))
		if isMissing(err) {
			return false, nil
		}
		if err != nil {
			return false, err
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

// RemoveTenants removes the table of tenants and reports whether there was one.
func RemoveTenants(netns int) (bool, error) {
	return (&Tenants{netns: netns}).remove()
}
