// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"maps"
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

	facts     Facts
	nodes     map[string]*nodeFacts
	rails     *guardrails
	host      *Host
	workloads []string
	shards    map[Key]*shard
	// shardClaims is the oldest shard that wants an address, on whatever node; served is the one of this node.
	shardClaims map[netip.Addr]*shard
	served      *servedShard

	services map[Key]*service
	slices   sliceIndex
	pods     podIndex
	wanted   index[netip.Addr] // status address -> Services, permitted or not
	claims   map[netip.Addr]*claim
	resolved map[Key]*resolution
	attached index[netip.Addr] // local backend -> Services
	backends map[netip.Addr]*Backend
	verdicts map[Key]Verdict
	// shardVerdicts are apart: a shard may have the name of a Service.
	shardVerdicts map[Key]Verdict
}

// claim is a public address with the Services that claim it, the oldest first, and what came of it.
type claim struct {
	claimants []*service
	grants    []grant
	record    *Address
}

// resolution is what a Service comes to before other Services are looked at.
type resolution struct {
	service   *service
	permitted []netip.Addr
	refused   []string // addresses that may not be captured, and why
	choices   [2]choice
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
		config:   c,
		hints:    programmed,
		nodes:    map[string]*nodeFacts{},
		shards:   map[Key]*shard{},
		services: map[Key]*service{},
		slices:   newSliceIndex(c.Node),
		pods:     newPodIndex(),
		wanted:   index[netip.Addr]{},
		claims:   map[netip.Addr]*claim{},
		resolved: map[Key]*resolution{},
		attached: index[netip.Addr]{},
		backends: map[netip.Addr]*Backend{},
		verdicts: map[Key]Verdict{},

		shardClaims: map[netip.Addr]*shard{}, shardVerdicts: map[Key]Verdict{},
	}
}

// dirty collects what has to be looked at again in one pass.
type dirty struct {
	services  set[Key]
	addresses set[netip.Addr]
	backends  set[netip.Addr]
	verdicts  set[Key]
	host      bool
	shards    bool
}

// Apply takes the objects that changed and what the kernel says about the node, and returns what that changes.
func (e *Engine) Apply(batch Objects, facts Facts) Outcome {
	d := &dirty{services: set[Key]{}, addresses: set[netip.Addr]{}, backends: set[netip.Addr]{}, verdicts: set[Key]{}}
	e.takeNodes(batch, facts, d)
	e.takePods(batch, d)
	e.takeSlices(batch, d)
	e.takeServices(batch, d)
	e.takeShards(batch, d)

	e.resolveServices(d)
	var out Outcome
	out.Delta.Addresses = e.settleAddresses(d)
	out.Delta.Backends = e.settleBackends(d)
	out.Delta.Host = e.settleHost(d)
	out.Verdicts, out.Gone = e.settleVerdicts(d)
	e.hints = nil // from here on the engine knows itself what is programmed
	return out
}

// SetWorkloads tells the interfaces behind which local backends are routed, sorted; they follow from the backends of an Outcome.
func (e *Engine) SetWorkloads(interfaces []string) *Change[Host] {
	if slices.Equal(interfaces, e.workloads) {
		return nil
	}
	e.workloads = slices.Clone(interfaces)
	if e.rails == nil {
		return nil // nothing is known of the node before the first batch, which will bring them along
	}
	return e.settleHost(&dirty{host: true})
}

// State returns everything that the kernel has to hold.
func (e *Engine) State() State {
	s := State{Addresses: make([]Address, 0, len(e.claims)), Backends: make([]Backend, 0, len(e.backends))}
	for _, c := range e.claims {
		if c.record != nil {
			s.Addresses = append(s.Addresses, *c.record)
		}
	}
	for _, b := range e.backends {
		s.Backends = append(s.Backends, *b)
	}
	slices.SortFunc(s.Addresses, func(a, b Address) int { return a.Public.Compare(b.Public) })
	slices.SortFunc(s.Backends, func(a, b Backend) int { return a.Addr.Compare(b.Addr) })
	if e.host != nil {
		s.Host = *e.host
	}
	return s
}

// Verdicts returns the verdict on every object, sorted by kind and name.
func (e *Engine) Verdicts() []Verdict {
	all := slices.AppendSeq(slices.Collect(maps.Values(e.verdicts)), maps.Values(e.shardVerdicts))
	slices.SortFunc(all, CompareVerdicts)
	return all
}

// Build is the whole policy in one step: what a node with these objects has to hold, and the verdict on each.
func Build(c Config, objects Objects, facts Facts) (State, []Verdict) {
	e := NewEngine(c, nil)
	e.Apply(objects, facts)
	return e.State(), e.Verdicts()
}
