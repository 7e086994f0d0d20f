// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"net/netip"
	"slices"
)

// The engine keeps one record for each Service, each public address and each address of a machine on this node. They point to each other, so
// that a name or an address is looked up once, when an object that gives it comes in.

// entry is a Service, or the name of one that slices give, with what became of it.
type entry struct {
	key     Key
	service *service         // nil while it is not delegated
	slices  []*endpointSlice // sorted by name
	claims  []*claim         // of the addresses of service, in their order
	// resolution and verdict are nil while service is, and before the first pass.
	resolution *resolution
	verdict    *Verdict
	// unresolved and unjudged mark what a dirty set holds already.
	unresolved, unjudged bool
}

// claim is a public address that Services want, with what became of it.
type claim struct {
	addr   netip.Addr
	wanted []*entry // whose status lists it, permitted or not
	grants []grant  // to those that may have it, the oldest first
	record *Address
	// unsettled marks what a dirty set holds already.
	unsettled bool
}

// workload is an address that Pods of this node have or slices list here.
type workload struct {
	addr     netip.Addr
	pods     []string         // the namespaces of the living Pods with it, one for each Pod
	listed   []*endpointSlice // which list it on this node
	attached []*entry         // whose backend it is
	record   *Backend
	// unsettled marks what a dirty set holds already.
	unsettled bool
}

// resolution is what a Service comes to before other Services are looked at.
type resolution struct {
	service   *service
	permitted []*claim
	refused   []string // addresses that may not be captured, and why
	choices   [2]choice
}

// older orders by age (R7), the oldest first.
func (n *entry) older(o *entry) int {
	return cmp.Or(cmp.Compare(n.service.created, o.service.created), CompareKeys(n.key, o.key))
}

// lists reports whether a slice of the Service has an endpoint with the address, counted or not.
func (n *entry) lists(a netip.Addr) bool {
	return slices.ContainsFunc(n.slices, func(s *endpointSlice) bool {
		return slices.ContainsFunc(s.endpoints, func(e endpoint) bool { return e.addr == a })
	})
}

// may reports whether policy lets the Service claim an address that it wants.
func (n *entry) may(c *claim) bool {
	return n.resolution != nil && slices.Contains(n.resolution.permitted, c)
}

// grantTo returns what a Service obtained, nil when it may not claim the address.
func (c *claim) grantTo(n *entry) *grant {
	for i := range c.grants {
		if c.grants[i].entry == n {
			return &c.grants[i]
		}
	}
	return nil
}

// vouches reports whether a living Pod of the namespace on this node has the address.
func (w *workload) vouches(namespace string) bool { return slices.Contains(w.pods, namespace) }

// dirty collects what has to be looked at again in one pass, each once.
type dirty struct {
	services  []*entry
	claims    []*claim
	workloads []*workload
	verdicts  []*entry
	host      bool
	shards    bool
}

func (d *dirty) service(n *entry) {
	if !n.unresolved {
		n.unresolved = true
		d.services = append(d.services, n)
	}
}

func (d *dirty) claim(c *claim) {
	if !c.unsettled {
		c.unsettled = true
		d.claims = append(d.claims, c)
	}
}

func (d *dirty) workload(w *workload) {
	if !w.unsettled {
		w.unsettled = true
		d.workloads = append(d.workloads, w)
	}
}

func (d *dirty) verdict(n *entry) {
	if !n.unjudged {
		n.unjudged = true
		d.verdicts = append(d.verdicts, n)
	}
}

// The following find a record or make it. Whatever lets go of a record marks it dirty, and the pass forgets it at its end when nothing is left
// in it.

func (e *Engine) entry(key Key) *entry {
	n := e.services[key]
	if n == nil {
		n = &entry{key: key}
		e.services[key] = n
	}
	return n
}

func (e *Engine) claim(a netip.Addr) *claim {
	c := e.claims[a]
	if c == nil {
		c = &claim{addr: a}
		e.claims[a] = c
	}
	return c
}

func (e *Engine) workload(a netip.Addr) *workload {
	w := e.workloads[a]
	if w == nil {
		w = &workload{addr: a}
		e.workloads[a] = w
	}
	return w
}

// without returns a list without one of its values.
func without[T comparable](list []T, value T) []T {
	return slices.DeleteFunc(list, func(v T) bool { return v == value })
}
