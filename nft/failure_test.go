// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

type nftConn = nftables.Conn

var errInjected = errors.New("injected")

// failOnce lets the next transaction go through fail.
func failOnce(table *Table, fail func(*nftConn) error) {
	flush := table.flush
	table.flush = func(c *nftConn) error {
		table.flush = flush
		return fail(c)
	}
}

// Whatever a transaction fails with, and whether or not it was applied all the same: the table is unsure, the next Sync
// makes it right on a fresh connection, and after it nothing is left to do.
func TestFailedTransaction(t *testing.T) {
	notApplied := func(errno syscall.Errno) func(*nftConn) error {
		return func(*nftConn) error { return fmt.Errorf("receive: %w", errno) }
	}
	failures := map[string]func(*nftConn) error{
		"EPERM":               notApplied(unix.EPERM),
		"EEXIST":              notApplied(unix.EEXIST),
		"ENOENT":              notApplied(unix.ENOENT),
		"ENOBUFS not applied": notApplied(unix.ENOBUFS),
		"ENOBUFS applied":     func(c *nftConn) error { return errors.Join(c.Flush(), unix.ENOBUFS) },
		"dead socket":         func(c *nftConn) error { return errors.Join(c.CloseLasting(), unix.EBADF) },
	}
	old, new := sampleState(), sampleState()
	new.Addresses = append(new.Addresses[1:], nat.Address{Public: ip("2001:db8:203::30"), Owner: owner("tenant-d", "late")})
	new.Backends = new.Backends[1:]
	for name, fail := range failures {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			table := open(t, ns, Options{})
			failOnce(table, fail)
			_, err := table.Sync(old)
			require.Error(t, err)
			requireUnsure(t, table)
			syncTo(t, table, old)

			failOnce(table, fail)
			_, err = table.Apply(delta(old, new))
			require.Error(t, err)
			requireUnsure(t, table)

			syncTo(t, table, new)
			requireHolds(t, ns, new)
			before := generation(t, ns)
			require.Zero(t, untouched(syncTo(t, table, new)))
			require.Equal(t, before, generation(t, ns))
		})
	}
}

func requireUnsure(t *testing.T, table *Table) {
	t.Helper()
	_, err := table.Apply(nat.Delta{})
	require.ErrorIs(t, err, ErrUnsure)
}

// What somebody else added or removed in between makes a difference fail as a whole, and Sync converges.
func TestElementRaces(t *testing.T) {
	races := map[string]struct {
		command []string
		errno   syscall.Errno
	}{
		"removed": {[]string{"delete", "element", "inet", tableName, "whole4", "{ 203.0.113.10 }"}, unix.ENOENT},
		"added":   {[]string{"add", "element", "inet", tableName, "whole4", "{ 203.0.113.50 : 10.9.9.9 }"}, unix.EEXIST},
	}
	for name, race := range races {
		t.Run(name, func(t *testing.T) {
			ns := testenv.NewT(t, "node")
			table := open(t, ns, Options{Unowned: true})
			old, new := sampleState(), sampleState()
			syncTo(t, table, old)
			ns.Nft(t, race.command...)

			new.Addresses[0].Whole.Backend = ip("10.244.1.11")
			new.Addresses = append(new.Addresses, nat.Address{Public: ip("203.0.113.50"),
				Whole: nat.Forward{Backend: ip("10.244.1.12"), Owner: owner("a", "b")}})
			_, err := table.Apply(delta(old, new))
			require.ErrorIs(t, err, race.errno)
			requireUnsure(t, table)
			result := syncTo(t, table, new)
			require.False(t, result.Replaced)
			requireHolds(t, ns, new)
			_, err = table.Apply(delta(new, old))
			require.NoError(t, err)
			requireHolds(t, ns, old)
		})
	}
}

// The answers to a large transaction overflow a small buffer: an error, although the kernel applied it.
func TestLostAnswers(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	require.NoError(t, table.conn.sock.SetReadBuffer(1))
	_, err := table.Sync(sampleState())
	require.ErrorIs(t, err, unix.ENOBUFS)
	requireUnsure(t, table)
	requireHolds(t, ns, sampleState())
	require.Zero(t, syncTo(t, table, sampleState()), "nothing is repeated blindly")
}

// A kernel that does not answer cannot hold up the caller.
func TestNoAnswer(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	table.conn.timeout = 10 * time.Millisecond
	failOnce(table, func(*nftConn) error {
		_, err := table.conn.sock.Receive() // nothing was asked
		return err
	})
	_, err := table.Sync(sampleState())
	require.ErrorIs(t, err, unix.ETIMEDOUT)
	require.True(t, syncTo(t, table, sampleState()).Replaced)
}

// Several refused commands in one transaction must not show up in the next.
func TestFailureDoesNotReachTheNextTransaction(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	syncTo(t, table, nat.State{})
	_, err := table.Apply(delta(sampleState(), nat.State{})) // deletes what is not there, in many sets
	require.ErrorIs(t, err, unix.ENOENT)
	syncTo(t, table, sampleState())
	_, err = table.Apply(delta(sampleState(), nat.State{}))
	require.NoError(t, err)
	requireHolds(t, ns, nat.State{})
}

// Without CAP_NET_ADMIN there is an error, and no hang.
func TestWithoutPrivilege(t *testing.T) {
	ns := testenv.NewT(t, "node")
	table := open(t, ns, Options{})
	errs := make(chan error, 2)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its capabilities
		if err := dropNetAdmin(); err != nil {
			errs <- err
			return
		}
		_, err := table.Sync(sampleState())
		errs <- err
	}()
	require.ErrorIs(t, <-errs, unix.EPERM)
	syncTo(t, table, sampleState())
}

// dropNetAdmin takes CAP_NET_ADMIN from the calling thread.
func dropNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	for i := range data {
		data[i].Inheritable = 0
	}
	data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	data[0].Permitted &^= 1 << unix.CAP_NET_ADMIN
	return unix.Capset(&header, &data[0])
}
