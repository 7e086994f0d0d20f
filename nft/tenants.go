// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

// tenantTable exists only while there are flags of tenants. It is apart from the other table because the library cannot write its one kind
// of expression (see zonePlaceholder), and so that nothing of it costs a node without tenants anything.
const tenantTable = "natplane_tenants"

// Tenants keeps the table of tenants. One goroutine may change it, any may ask for its counters.
type Tenants struct {
	// main is asked for what the kernel holds.
	main   *Table
	config nat.Tenants
	flags  nftables.TableFlags
	// sock writes, and owns the table.
	sock *netlink.Conn

	mu sync.Mutex
	// written is what the kernel was given; without chains it is not known.
	written layout
}

// Tenants returns the keeper of the table of tenants. Nothing is written yet.
func (t *Table) Tenants(config nat.Tenants) *Tenants {
	return &Tenants{main: t, config: config, flags: t.flags}
}

// Close gives the ownership back; the table stays.
func (t *Tenants) Close() error {
	t.setWritten(layout{})
	if t.sock == nil {
		return nil
	}
	sock := t.sock
	t.sock = nil
	t.main.tenantPort.Store(0)
	return sock.Close()
}

// Sync makes the table what the host's record asks for, whatever it is now, in one transaction, and reports whether it was something else.
func (t *Tenants) Sync(h nat.Host) (changed bool, err error) {
	if t.config.None() {
		return t.main.RemoveTenants()
	}
	if t.sock == nil {
		if t.sock, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: t.main.netns}); err != nil {
			return false, fmt.Errorf("nftables socket: %w", err)
		}
		t.main.tenantPort.Store(t.sock.PID())
	}
	// Takes a table that a process which is gone left behind. With other flags it cannot be taken, and is made anew below.
	err = t.send(func(c *nftables.Conn) error { c.AddTable(t.table()); return nil })
	if err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return false, t.fail(err)
	}
	layout := newTenantLayout(t.config, h)
	same, err := t.holds(layout)
	if err != nil {
		return false, err
	}
	if same {
		t.setWritten(layout)
		return false, nil
	}
	return true, t.write(layout)
}

// Apply is Sync for a table that this keeper wrote and that nobody changed: nothing is read, and nothing sent when nothing differs.
func (t *Tenants) Apply(h nat.Host) (changed bool, err error) {
	before := t.lastWritten()
	if t.config.None() || len(before.chains) == 0 {
		return t.Sync(h)
	}
	layout := newTenantLayout(t.config, h)
	if layout.sum == before.sum {
		return false, nil
	}
	return true, t.write(layout)
}

func (t *Tenants) write(l layout) error {
	err := t.send(func(c *nftables.Conn) error {
		c.DelTable(t.table())
		c.AddTable(t.table())
		return l.queue(c, t.table())
	})
	if err != nil {
		return t.fail(err)
	}
	t.setWritten(l)
	return nil
}

func (t *Tenants) setWritten(l layout) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written = l
}

func (t *Tenants) lastWritten() layout {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written
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

// Counters reads the counters of the rules that drop, as those of the other table are. They begin anew whenever the table is written.
func (t *Tenants) Counters() ([]Counter, error) {
	l := t.lastWritten()
	if len(l.chains) == 0 {
		return nil, nil
	}
	counters, err := t.main.counters(t.table(), l.chains)
	for i := range counters {
		counters[i].Comment = strings.TrimSuffix(counters[i].Comment, l.sum)
	}
	return counters, err
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
// may change an owned table. Where it is not owned a rule may be another one with the same comment, so it does not count there.
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
