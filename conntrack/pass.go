// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// maxSearches is the number of searches up to which the kernel selects. With
// 200,000 flows a search takes 50 ms and reading all of them 0.8 s.
const maxSearches = 16

// reapAt is the number of stale flows that are held before they are deleted.
const reapAt = 256

// pass is one look at the flows of a set of targets. It is used once.
type pass struct {
	auditor *Auditor
	scope   scope
	targets map[target]uint64 // with the sequence number that they had
	done    map[target]bool

	stale    []Flow
	verdicts [verdicts]int
	result   Result
	refused  error // the first refusal since the last target was begun
	examined int
	full     int // dumps of a whole family
}

func newPass(a *Auditor) *pass {
	return &pass{
		auditor: a,
		scope:   scope{public: make(map[netip.Addr]memory), backends: make(map[netip.Addr]struct{})},
		targets: make(map[target]uint64),
		done:    make(map[target]bool),
	}
}

func (p *pass) add(t target, e pending) {
	p.targets[t] = e.seq
	p.scope.add(t, e.memory)
}

// run looks at every target and marks those that are done. One that fails does
// not keep the others from being looked at.
func (p *pass) run(ctx context.Context) error {
	few, many := p.split()
	var errs firstError
	for _, t := range few {
		switch err := p.search(ctx, t); {
		case err == nil:
			p.done[t] = true
		case errors.Is(err, ErrNoFilter):
			many = append(many, t)
		default:
			errs.add(err)
		}
	}
	failed := make(map[Family]bool)
	for _, family := range familiesOf(many) {
		if err := p.look(ctx, Query{Family: family, AnyOf: mentioned(many, family)}); err != nil {
			failed[family] = true
			errs.add(err)
		}
		p.full++
	}
	for _, t := range many {
		p.done[t] = true
		for _, family := range t.families() {
			p.done[t] = p.done[t] && !failed[family]
		}
	}
	return errs.err()
}

// finished counts the targets that are done.
func (p *pass) finished() int {
	n := 0
	for _, done := range p.done {
		if done {
			n++
		}
	}
	return n
}

// split tells the targets that are worth a search each from those that are
// found by reading all flows, family by family: a change of one family does
// not make the other be read.
func (p *pass) split() (few, many []target) {
	count := make(map[Family]int)
	for t := range p.targets {
		for _, family := range t.families() {
			if n := len(t.searches()); n > 0 {
				count[family] += n
			} else {
				count[family] += maxSearches + 1
			}
		}
	}
	for t := range p.targets {
		if count[t.families()[0]] <= maxSearches {
			few = append(few, t)
		} else {
			many = append(many, t)
		}
	}
	return few, many
}

func familiesOf(targets []target) []Family {
	var list []Family
	for _, want := range []Family{IPv4, IPv6} {
		for _, t := range targets {
			families := t.families()
			if families[0] == want || families[len(families)-1] == want {
				list = append(list, want)
				break
			}
		}
	}
	return list
}

// mentioned lists the addresses of the targets when every flow to look at holds
// one of them, and they are few.
func mentioned(targets []target, family Family) []netip.Addr {
	var list []netip.Addr
	for _, t := range targets {
		searches := t.searches()
		if len(searches) == 0 || len(list) >= maxSearches {
			return nil
		}
		if a := searches[0].Addr; familyOf(a) == family {
			list = append(list, a)
		}
	}
	return list
}

func (p *pass) search(ctx context.Context, t target) error {
	for _, q := range t.searches() {
		if err := p.look(ctx, q); err != nil {
			return err
		}
	}
	return nil
}

// look judges all flows of one query and deletes the stale ones meanwhile.
func (p *pass) look(ctx context.Context, q Query) error {
	p.refused = nil
	err := dump(ctx, p.auditor.table, q, func() {}, func(f Flow) {
		p.examined++
		if p.auditor.judge(f, &p.scope) == Legal {
			return
		}
		if p.stale = append(p.stale, f); len(p.stale) >= reapAt {
			p.reap(ctx)
		}
	})
	// What was seen is real, whether or not the list was complete.
	p.reap(ctx)
	return errors.Join(err, p.refused)
}

// reap deletes what is stale still: the state may have changed since it was
// found.
func (p *pass) reap(ctx context.Context) {
	doomed := p.stale[:0]
	for _, f := range p.stale {
		if v := p.auditor.judge(f, &p.scope); v != Legal {
			p.verdicts[v]++
			doomed = append(doomed, f)
		}
	}
	p.stale = p.stale[:0]
	if len(doomed) == 0 {
		return
	}
	result, err := p.auditor.table.Delete(ctx, doomed)
	p.result.add(result)
	if err != nil && p.refused == nil {
		p.refused = err
	}
}

// reasons lists the verdicts with their numbers, for the log.
func (p *pass) reasons() string {
	var list []string
	for v, n := range p.verdicts {
		if n > 0 {
			list = append(list, fmt.Sprintf("%v=%d", Verdict(v), n))
		}
	}
	return strings.Join(list, " ")
}

// firstError keeps the first of many errors and their number.
type firstError struct {
	first error
	count int
}

func (f *firstError) add(err error) {
	if f.count++; f.first == nil {
		f.first = err
	}
}

func (f *firstError) err() error {
	if f.count <= 1 {
		return f.first
	}
	return fmt.Errorf("%d failures, the first: %w", f.count, f.first)
}
