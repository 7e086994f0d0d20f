// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"slices"
)

// Engine applies batches of changed objects and tells what changed in the State. What one change costs depends on the objects that it
// touches (a Service, its addresses, the Services that share them, its backends), not on how many there are. It is not safe for
// concurrent use: the goroutine that owns the kernel owns it.
type Engine struct {
	config Config
	// hints are the backends that the kernel held for a public address when the agent started (R4).
	hints map[netip.Addr][]netip.Addr

	facts      Facts
	nodes      map[string]*nodeFacts
	rails      *guardrails
	host       *Host
	interfaces []string // behind which local backends are routed
	shards     map[Key]*shard
	// shardClaims is the oldest shard that wants an address, on whatever node; served is the one of this node.
	shardClaims map[netip.Addr]*shard
	served      *servedShard

	services  map[Key]*entry
	slices    map[Key]*endpointSlice
	pods      map[Key][]*workload // living ones of this node
	claims    map[netip.Addr]*claim
	workloads map[netip.Addr]*workload
	// shardVerdicts are apart: a shard may have the name of a Service.
	shardVerdicts map[Key]Verdict
}

// NodeMissing says so when there are Node objects and none has the name of this node, or is "". Every backend is elsewhere then, and
// the name is most likely a slip.
func (e *Engine) NodeMissing() string {
	if len(e.nodes) == 0 || e.nodes[e.config.Node] != nil {
		return ""
	}
	return fmt.Sprintf("none of the Node objects is named %q: is --node-name right?", e.config.Node)
}

// Outcome is what a batch changed.
type Outcome struct {
	Delta Delta
	// Verdicts are the new and the changed ones, sorted by name.
	Verdicts []Verdict
	// Gone are the Services that are no longer ours.
	Gone []Key
}

// NewEngine returns an engine without objects. programmed holds, by public address, the backends that the kernel translates to
// already; it may be nil.
func NewEngine(c Config, programmed map[netip.Addr][]netip.Addr) *Engine {
	return &Engine{
		config: c,
		hints:  programmed,
		nodes:  map[string]*nodeFacts{},
		shards: map[Key]*shard{},

		shardClaims: map[netip.Addr]*shard{}, shardVerdicts: map[Key]Verdict{},
	}
}

// Apply takes the objects that changed and what the kernel says about the node, and returns what that changes.
func (e *Engine) Apply(batch Objects, facts Facts) Outcome {
	e.makeRoom(batch)
	d := &dirty{}
	e.takeTenants(facts, d)
	e.takeNodes(batch, facts, d)
	e.takeServices(batch, d)
	e.takePods(batch, d)
	e.takeSlices(batch, d)
	e.takeShards(batch, d)

	e.resolveServices(d)
	var out Outcome
	out.Delta.Addresses = e.settleClaims(d)
	out.Delta.Backends = e.settleWorkloads(d)
	out.Delta.Host = e.settleHost(d)
	out.Verdicts, out.Gone = e.settleVerdicts(d)
	e.hints = nil // from here on the engine knows itself what is programmed
	return out
}

// makeRoom spares a start with many objects the growth of the maps, step by step.
func (e *Engine) makeRoom(first Objects) {
	if e.rails != nil {
		return
	}
	e.services = make(map[Key]*entry, len(first.Services))
	e.slices = make(map[Key]*endpointSlice, len(first.Slices))
	e.pods = make(map[Key][]*workload, len(first.Pods))
	e.claims = make(map[netip.Addr]*claim, len(first.Services))
	e.workloads = make(map[netip.Addr]*workload, len(first.Pods))
}

// SetWorkloads tells the interfaces behind which local backends are routed, sorted; they follow from the backends of an Outcome.
func (e *Engine) SetWorkloads(interfaces []string) *Change[Host] {
	if slices.Equal(interfaces, e.interfaces) {
		return nil
	}
	e.interfaces = slices.Clone(interfaces)
	if e.rails == nil {
		return nil // nothing is known of the node before the first batch, which will bring them along
	}
	return e.settleHost(&dirty{host: true})
}

// State returns everything that the kernel has to hold.
func (e *Engine) State() State {
	addresses, backends := make([]*Address, 0, len(e.claims)), make([]*Backend, 0, len(e.workloads))
	for _, c := range e.claims {
		if c.record != nil {
			addresses = append(addresses, c.record)
		}
	}
	for _, w := range e.workloads {
		if w.record != nil {
			backends = append(backends, w.record)
		}
	}
	slices.SortFunc(addresses, func(a, b *Address) int { return a.Public.Compare(b.Public) })
	slices.SortFunc(backends, func(a, b *Backend) int { return a.Addr.Compare(b.Addr) })
	s := State{Addresses: values(addresses), Backends: values(backends)}
	if e.host != nil {
		s.Host = *e.host
	}
	return s
}

// Verdicts returns the verdict on every object, sorted by kind and name.
func (e *Engine) Verdicts() []Verdict {
	var all []*Verdict
	for _, n := range e.services {
		if n.verdict != nil {
			all = append(all, n.verdict)
		}
	}
	for _, v := range e.shardVerdicts {
		all = append(all, &v)
	}
	slices.SortFunc(all, compareVerdicts)
	return values(all)
}

// values copies records that were sorted by pointers, which is faster.
func values[T any](records []*T) []T {
	list := make([]T, len(records))
	for i, r := range records {
		list[i] = *r
	}
	return list
}

// Build is the whole policy in one step: what a node with these objects has to hold, and the verdict on each.
func Build(c Config, objects Objects, facts Facts) (State, []Verdict) {
	e := NewEngine(c, nil)
	e.Apply(objects, facts)
	return e.State(), e.Verdicts()
}
