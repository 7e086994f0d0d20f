// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
)

var (
	// ErrOwned is returned while another process owns the table.
	ErrOwned = errors.New("another process owns the table")
	// ErrUnsure is returned by Apply before the first Sync and after any error: what the kernel holds is not known then, and a
	// difference to it cannot be written. Sync reads the kernel and ends that.
	ErrUnsure = errors.New("the content of the table is not known")

	errClosed = errors.New("table is closed")
)

// Options say where and how a Table works. The zero value is right for an agent.
type Options struct {
	// NetNS is a file descriptor of the network namespace to work in, valid as long as the Table; 0 is that of the process.
	NetNS int
	// Log gets a line when something about the table itself happens; nil is silence.
	Log *slog.Logger
	// Unowned leaves the table without the owner and persist flags, as on a kernel before 6.9. Others can change it then.
	Unowned bool
	// ShardPorts are the ports of shard connections, unless zero; another range than that of the table in the kernel replaces the table.
	ShardPorts nat.PortRange
	// Commit, if any, is called in place of send for every transaction; tests put failures here.
	Commit func(send func() error) error
}

// Result says what a transaction changed. The zero value is nothing.
type Result struct {
	// Added and Removed count elements; one whose value or comment changed counts in both.
	Added, Removed int
	// Replaced is true when the whole table was written, and Reason says why ("" when there was none).
	Replaced bool
	Reason   string
	// Former are the public addresses of removed elements, sorted, when Sync found them in the kernel.
	Former []netip.Addr
	// Parted are former public addresses and the backends that they stood for, as transactions wrote them down a while ago, when Sync read
	// the kernel: an agent may have died before it saw to their flows.
	Parted map[netip.Addr][]netip.Addr
	// Invalid has an error for each record that was left out because the kernel could not hold it. The others were written.
	Invalid []error
	// Compared is the time that finding the difference took, with reading the kernel where that was done, and Committed that of
	// the transaction. Both are 0 when there was none.
	Compared, Committed time.Duration
}

// compared gives the time since start, but for the transaction, to the comparison.
func (r *Result) compared(start time.Time) {
	if r.Committed > 0 {
		r.Compared = time.Since(start) - r.Committed
	}
}

// Table is the table inet natplane of one network namespace. Its methods may be called from many goroutines.
type Table struct {
	netns  int
	log    *slog.Logger
	layout layout
	// flags are those that the table gets.
	flags nftables.TableFlags
	// flush ends a transaction; tests put failures here.
	flush   func(*nftables.Conn) error
	changed chan struct{}
	// events is nil where the table is owned.
	events *netlink.Conn
	// port is the netlink port that our transactions come from, tenantPort that of the other table's.
	port, tenantPort atomic.Uint32

	// rider adds to the next transaction; see TakeOver.
	rider func(*conn) error

	mu   sync.Mutex
	conn *conn
	enc  encoder
	// snapshot is what Backends read for the next Sync, or nil.
	snapshot *snapshot
	broken   bool // conn saw an error
	unsure   bool
	closed   bool
	// parted is true while the kernel may remember former addresses.
	parted bool
}

// Open connects to the kernel and finds out what it can do. An error names the first feature that is missing and the
// kernel version that brought it. The kernel's tables are as before: Sync is the first to touch one.
func Open(o Options) (*Table, error) {
	t := &Table{
		netns: o.NetNS, log: o.Log, layout: newLayout(o.ShardPorts), unsure: true,
		flush: (*nftables.Conn).Flush, changed: make(chan struct{}, 1),
	}
	if o.Commit != nil {
		t.flush = func(c *nftables.Conn) error { return o.Commit(c.Flush) }
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.enc.defs = t.layout.defs
	c, err := t.connect()
	if err != nil {
		return nil, err
	}
	owned, err := probe(c, features())
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	if owned && !o.Unowned {
		t.flags = nftables.TableFlagOwner | nftables.TableFlagPersist
	}
	if t.flags == 0 {
		if t.events, err = dialEvents(t.netns); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	if !owned {
		t.log.Info("nftables: the kernel cannot protect the table from others (owner and persist flags: kernel 6.9)")
	}
	return t, nil
}

// Close gives the connection back, and with it the ownership. The table stays and goes on translating.
func (t *Table) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil
	}
	t.closed, t.unsure = true, true
	var errs []error
	if t.conn != nil {
		errs = append(errs, t.conn.close())
	}
	if t.events != nil {
		if err := t.events.Close(); !errors.Is(err, unix.EBADF) && !errors.Is(err, os.ErrClosed) { // by Watch
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// connect returns the connection, a new one after an error: what an earlier failure left in the old one cannot meet a later
// transaction. The old one is kept until now because it still owned the table.
func (t *Table) connect() (*conn, error) {
	if t.closed {
		return nil, errClosed
	}
	if t.conn != nil && !t.broken {
		return t.conn, nil
	}
	c, err := dial(t.netns)
	if err != nil {
		return nil, err
	}
	if t.conn != nil {
		_ = t.conn.close() // nothing is expected of it any more
	}
	t.conn, t.broken = c, false
	t.port.Store(c.port)
	return c, nil
}

// fail notes that the kernel may hold anything now, and says which object err is about.
func (t *Table) fail(err error) error {
	t.broken, t.unsure, t.snapshot = true, true, nil
	return fmt.Errorf("nftables table inet %s: %w", tableName, err)
}

// Sync makes the table what state asks for, whatever it is now, in one transaction at most. It reads the table first: where
// only elements differ only those are written, and where nothing differs nothing is.
func (t *Table) Sync(state nat.State) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	start := time.Now()
	result, err := t.sync(&state)
	result.compared(start)
	if err != nil {
		return result, t.fail(err)
	}
	t.unsure = false
	return result, nil
}

func (t *Table) sync(state *nat.State) (Result, error) {
	c, err := t.connect()
	if err != nil {
		return Result{}, err
	}
	have, err := readTable(c)
	if err != nil {
		return Result{}, err
	}
	if have == nil {
		t.snapshot = nil
		return t.replace(c, state, false, nil, "")
	}
	transactions, err := t.own(c, have)
	if err != nil {
		return Result{}, err
	}
	known, err := t.takeSnapshot(c, transactions)
	if err != nil {
		return Result{}, err
	}
	parted, err := t.readParted(c)
	if err != nil {
		return Result{}, err
	}
	t.parted = t.parted || len(parted) > 0
	reason, err := t.compare(c, have)
	if err != nil {
		return Result{}, err
	}
	if reason != "" {
		old, err := t.readTranslations(c, known)
		if err != nil {
			return Result{}, err
		}
		want, _ := stateElements(state)
		result, err := t.replace(c, state, true, append(partedElements(parted), partings(old, want)...), reason)
		result.Former, result.Parted = publicsOf(old), parted
		return result, err
	}
	result, err := t.correct(c, state, known)
	result.Parted = parted
	return result, err
}

// own takes a table that a process which is gone left behind, before it is read, so that nobody changes it from then on. It
// returns the number of transactions that it took.
func (t *Table) own(c *conn, have *nftables.Table) (transactions uint32, err error) {
	if have.Flags&nftables.TableFlagOwner != 0 {
		if have.Owner != c.port {
			return 0, fmt.Errorf("%w (netlink port %d)", ErrOwned, have.Owner)
		}
		return 0, nil
	}
	if t.flags == 0 || have.Flags != nftables.TableFlagPersist {
		return 0, nil // the kernel gives an owner only to an orphan; any other table is made anew
	}
	c.AddTable(t.kernelTable())
	if err := t.commit(c); err != nil {
		return 0, fmt.Errorf("take over: %w", err)
	}
	have.Flags = t.flags
	return 1, nil
}

func (t *Table) kernelTable() *nftables.Table {
	return &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet, Flags: t.flags}
}

// replace writes the whole table, and what to remember of an old one. Packets meet the old one until the new one is complete.
func (t *Table) replace(c *conn, state *nat.State, exists bool, parted []element, reason string) (Result, error) {
	start := time.Now()
	table := t.kernelTable()
	if exists {
		c.DelTable(table)
	}
	c.AddTable(table)
	if err := t.layout.queue(c.Conn, table); err != nil {
		return Result{}, err
	}
	adding := t.newBatch(c.SetAddElements)
	invalid := walk(state, adding.add)
	added := adding.count
	t.remember(adding, parted)
	if err := adding.end(); err != nil {
		return Result{Invalid: invalid}, err
	}
	if err := t.ride(c); err != nil {
		return Result{Invalid: invalid}, err
	}
	if err := t.commit(c); err != nil {
		return Result{Invalid: invalid}, err
	}
	return Result{Added: added, Replaced: true, Reason: reason, Invalid: invalid, Committed: time.Since(start)}, nil
}

// correct writes the elements that differ.
func (t *Table) correct(c *conn, state *nat.State, known *snapshot) (Result, error) {
	have, strange, err := t.readElements(c, known)
	if err != nil {
		return Result{}, err
	}
	table := t.kernelTable()
	for _, s := range strange {
		c.FlushSet(t.layout.defs[s].kernelSet(table))
	}
	want, invalid := stateElements(state)
	del, add := diff(have, want)
	if len(del)+len(add)+len(strange) == 0 && t.rider == nil {
		return Result{Invalid: invalid}, nil
	}
	result, err := t.write(c, del, add)
	result.Invalid, result.Former = invalid, publicsOf(del)
	if err == nil && len(strange) > 0 {
		result.Reason = fmt.Sprintf("elements that natplane does not write in %s", t.layout.defs[strange[0]].name)
	}
	return result, err
}

// Apply writes what changed between two states of which the first is programmed: only the differences, in one transaction,
// without reading anything. A difference that is not visible in the table sends nothing.
func (t *Table) Apply(d nat.Delta) (Result, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unsure {
		return Result{}, fmt.Errorf("nftables table inet %s: %w", tableName, ErrUnsure)
	}
	start := time.Now()
	have, want, invalid := deltaElements(&d)
	del, add := diff(have, want)
	if len(del)+len(add) == 0 {
		return Result{Invalid: invalid}, nil
	}
	c, err := t.connect()
	if err != nil {
		return Result{Invalid: invalid}, t.fail(err)
	}
	result, err := t.write(c, del, add)
	result.Invalid = invalid
	result.compared(start)
	if err != nil {
		return result, t.fail(err)
	}
	return result, nil
}

// write deletes before it adds: the kernel refuses a key that it holds with another value. What it writes down about former addresses is not
// counted.
func (t *Table) write(c *conn, del, add []element) (Result, error) {
	start := time.Now()
	deleting, adding := t.newBatch(c.SetDeleteElements), t.newBatch(c.SetAddElements)
	deleting.add(del)
	if err := deleting.end(); err != nil {
		return Result{}, err
	}
	adding.add(add)
	added := adding.count
	t.remember(adding, partings(del, add))
	if err := adding.end(); err != nil {
		return Result{}, err
	}
	if err := t.ride(c); err != nil {
		return Result{}, err
	}
	if err := t.commit(c); err != nil {
		return Result{}, err
	}
	return Result{Added: added, Removed: deleting.count, Committed: time.Since(start)}, nil
}

// commit sends what is queued. Any error leaves open whether the kernel took it: ENOBUFS may stand for answers lost on the
// way back.
func (t *Table) commit(c *conn) error {
	err := c.do(func() error { return t.flush(c.Conn) })
	if errors.Is(err, unix.EPERM) {
		if have, readErr := readTable(c); readErr == nil && ownedByOther(have, c) {
			return fmt.Errorf("%w (netlink port %d): %w", ErrOwned, have.Owner, err)
		}
	}
	return err
}

func ownedByOther(have *nftables.Table, c *conn) bool {
	return have != nil && have.Flags&nftables.TableFlagOwner != 0 && have.Owner != c.port
}

// Remove deletes the table. That there is none is no error.
func (t *Table) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, err := t.connect()
	if err != nil {
		return t.fail(err)
	}
	t.unsure = true
	c.DelTable(t.kernelTable())
	if err := t.commit(c); err != nil && !isMissing(err) {
		return t.fail(err)
	}
	return nil
}
