// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Field is the place in a flow that a Query looks at.
type Field uint8

// The four addresses of a flow.
const (
	OrigSrc Field = iota
	OrigDst
	ReplySrc
	ReplyDst
)

// Of returns the address that the field names.
func (x Field) Of(f Flow) netip.Addr {
	switch x {
	case OrigSrc:
		return f.Orig.Src
	case OrigDst:
		return f.Orig.Dst
	case ReplySrc:
		return f.Reply.Src
	default:
		return f.Reply.Dst
	}
}

// Family is an address family.
type Family uint8

// The families of a Query.
const (
	BothFamilies Family = iota
	IPv4
	IPv6
)

func familyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// Query selects flows of every zone. The zero value selects all flows of both
// families.
type Query struct {
	// Family selects by address family. It counts only while Addr is invalid.
	Family Family
	Field  Field
	// Addr is the address that the field has to hold; invalid selects all.
	Addr netip.Addr
	// AnyOf allows, but does not oblige, the table to leave out flows that hold
	// none of these addresses anywhere. Empty means that all are wanted.
	AnyOf []netip.Addr
}

func (q Query) byAddress() bool { return q.Addr.IsValid() }

func (q Query) family() Family {
	if q.byAddress() {
		return familyOf(q.Addr)
	}
	return q.Family
}

// Matches reports whether the query selects the flow.
func (q Query) Matches(f Flow) bool {
	if q.byAddress() {
		return q.Field.Of(f) == q.Addr
	}
	return q.Family == BothFamilies || q.Family == familyOf(f.Orig.Src)
}

// Result counts the outcomes of a deletion.
type Result struct {
	Deleted, Gone, Failed int
}

func (r *Result) add(o Result) {
	r.Deleted += o.Deleted
	r.Gone += o.Gone
	r.Failed += o.Failed
}

// Table is the connection-tracking table of one network namespace. Its methods
// may be called from many goroutines, and Delete also from within visit.
type Table interface {
	// Dump calls visit for every selected flow and returns nil only when the
	// kernel has said that the list is complete. It returns ErrNoFilter, before
	// any call of visit, when the kernel cannot select by this query.
	Dump(ctx context.Context, q Query, visit func(Flow)) error
	// Delete deletes each flow by identity. A flow that is gone, or that was
	// replaced by another with the same tuple, is a success. The error tells
	// the first failure and their number; the other flows are deleted.
	Delete(ctx context.Context, flows []Flow) (Result, error)
}

// ErrInterrupted says that a dump did not come to its end: what it showed is
// real, but it may have left something out.
var ErrInterrupted = errors.New("dump interrupted")

// ErrNoFilter says that the kernel cannot select flows by address.
var ErrNoFilter = errors.New("kernel cannot select flows by address")

// dumpAttempts bounds the immediate repeats of an interrupted dump; the auditor
// comes back later when they were not enough.
const dumpAttempts = 5

// dump repeats an interrupted dump. begin is called before each attempt, for
// callers to whom a flow shown twice is not the same as once.
func dump(ctx context.Context, t Table, q Query, begin func(), visit func(Flow)) error {
	var err error
	for range dumpAttempts {
		begin()
		if err = t.Dump(ctx, q, visit); !errors.Is(err, ErrInterrupted) {
			return err
		}
	}
	return fmt.Errorf("%d attempts: %w", dumpAttempts, err)
}
