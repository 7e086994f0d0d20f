// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
	"strings"
)

// takeNodes redraws the guardrails when a Node object or this node's interfaces changed. That touches every Service, and is rare: a
// heartbeat does not change the facts of a Node.
func (e *Engine) takeNodes(batch Objects, facts Facts, d *dirty) {
	changed := e.rails == nil || !facts.Equal(e.facts)
	for name, object := range batch.Nodes {
		n := newNode(object, e.config.AgentNodes)
		if n.equal(e.nodes[name]) {
			continue
		}
		changed = true
		if n == nil {
			delete(e.nodes, name)
		} else {
			e.nodes[name] = n
		}
	}
	if !changed {
		return
	}
	// The caller may use its slices again: what the engine compares with later must not change under it.
	e.facts = Facts{Addresses: slices.Clone(facts.Addresses), Uplinks: slices.Clone(facts.Uplinks), Tenants: e.facts.Tenants}
	before := e.rails
	e.rails = newGuardrails(e.config, e.nodes, facts)
	d.host = true
	for _, n := range e.services {
		d.service(n)
		if before != nil && !before.sameReporters(e.rails) {
			d.verdict(n)
		}
	}
}

func (e *Engine) takeServices(batch Objects, d *dirty) {
	for key, object := range batch.Services {
		after, n := newService(object, e.config.ProxyNames), e.services[key]
		if n == nil && after == nil || n != nil && after.equal(n.service) {
			continue
		}
		if n == nil {
			n = e.entry(key)
		}
		d.service(n)
		for _, c := range n.claims {
			c.wanted = without(c.wanted, n)
			d.claim(c)
		}
		n.service, n.claims = after, nil
		if after == nil {
			continue
		}
		n.claims = make([]*claim, len(after.addresses))
		for i, a := range after.addresses {
			n.claims[i] = e.claim(a)
			n.claims[i].wanted = append(n.claims[i].wanted, n)
		}
	}
}

// takePods marks the Services that list an address for which a Pod began or ceased to vouch, and those that want it as public.
func (e *Engine) takePods(batch Objects, d *dirty) {
	for key, object := range batch.Pods {
		before, addresses := e.pods[key], podAddresses(object, e.config.Node)
		if slices.EqualFunc(before, addresses, func(w *workload, a netip.Addr) bool { return w.addr == a }) {
			continue
		}
		after := make([]*workload, len(addresses))
		for i, a := range addresses {
			after[i] = e.workload(a)
			after[i].pods = append(after[i].pods, key.Namespace)
		}
		for _, w := range before {
			i := slices.Index(w.pods, key.Namespace)
			w.pods = slices.Delete(w.pods, i, i+1)
			d.workload(w)
		}
		if len(after) == 0 {
			delete(e.pods, key)
		} else {
			e.pods[key] = after
		}
		for _, w := range slices.Concat(before, after) {
			e.vouchingChanged(w, key.Namespace, d)
		}
	}
}

func (e *Engine) vouchingChanged(w *workload, namespace string, d *dirty) {
	for _, s := range w.listed {
		if s.key.Namespace == namespace {
			d.service(s.entry)
		}
	}
	if c := e.claims[w.addr]; c != nil {
		for _, n := range c.wanted {
			d.service(n)
		}
	}
}

func (e *Engine) takeSlices(batch Objects, d *dirty) {
	for key, object := range batch.Slices {
		before, after := e.slices[key], newSlice(object)
		if before.equal(after) {
			continue
		}
		if before != nil {
			e.dropSlice(before, d)
		}
		if after == nil {
			delete(e.slices, key)
			continue
		}
		e.slices[key] = after
		e.keepSlice(after, d)
	}
}

func (e *Engine) dropSlice(s *endpointSlice, d *dirty) {
	s.entry.slices = without(s.entry.slices, s)
	d.service(s.entry)
	for _, ep := range s.endpoints {
		if w := ep.workload; w != nil {
			w.listed = without(w.listed, s)
			d.workload(w)
		}
	}
}

func (e *Engine) keepSlice(s *endpointSlice, d *dirty) {
	n := e.entry(Key{Namespace: s.key.Namespace, Name: s.service})
	at, _ := slices.BinarySearchFunc(n.slices, s, func(a, b *endpointSlice) int { return strings.Compare(a.key.Name, b.key.Name) })
	n.slices = slices.Insert(n.slices, at, s)
	s.entry = n
	d.service(n)
	for i := range s.endpoints {
		ep := &s.endpoints[i]
		if ep.node != e.config.Node {
			continue // the Pods of other nodes are not known here
		}
		ep.workload = e.workload(ep.addr)
		if !slices.Contains(ep.workload.listed, s) {
			ep.workload.listed = append(ep.workload.listed, s)
		}
	}
}
