// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
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
	e.facts = Facts{Addresses: slices.Clone(facts.Addresses), Uplinks: slices.Clone(facts.Uplinks)}
	before := e.rails
	e.rails = newGuardrails(e.config, e.nodes, facts)
	d.host = true
	for key := range e.services {
		d.services.add(key)
		if before != nil && !before.sameReporters(e.rails) {
			d.verdicts.add(key)
		}
	}
}

// takePods marks the Services that list an address for which a Pod began or ceased to vouch, and those that want it as public.
func (e *Engine) takePods(batch Objects, d *dirty) {
	for key, object := range batch.Pods {
		for _, a := range e.pods.put(key, podAddresses(object, e.config.Node)) {
			for _, s := range e.slices.listing(key.Namespace, a) {
				d.services.add(s)
			}
			for _, s := range e.wanted[a] {
				d.services.add(s)
			}
		}
	}
}

func (e *Engine) takeSlices(batch Objects, d *dirty) {
	for key, object := range batch.Slices {
		for _, s := range e.slices.put(key, newSlice(object)) {
			d.services.add(s)
		}
	}
}

func (e *Engine) takeServices(batch Objects, d *dirty) {
	for key, object := range batch.Services {
		before, after := e.services[key], newService(object, e.config.ProxyNames)
		if after.equal(before) {
			continue
		}
		d.services.add(key)
		e.wanted.move(key, addressesOf(before), addressesOf(after))
		if after == nil {
			delete(e.services, key)
		} else {
			e.services[key] = after
		}
	}
}

func addressesOf(s *service) []netip.Addr {
	if s == nil {
		return nil
	}
	return s.addresses
}
