// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Reason says in one word why an object is not, or not wholly, programmed (R20).
type Reason string

// The reasons of Services. ReasonElsewhere is never written to a Service: the node that hosts the backend speaks for it.
const (
	ReasonProgrammed        Reason = "Programmed"
	ReasonNoAddress         Reason = "NoAddress"
	ReasonInvalidAddress    Reason = "InvalidAddress"
	ReasonNotPermitted      Reason = "NotPermitted"
	ReasonAddressConflict   Reason = "AddressConflict"
	ReasonPortConflict      Reason = "PortConflict"
	ReasonNoPorts           Reason = "NoPorts"
	ReasonMultipleBackends  Reason = "MultipleBackends"
	ReasonBackendUnverified Reason = "BackendUnverified"
	ReasonNoBackend         Reason = "NoBackend"
	ReasonNoBackendFamily   Reason = "NoBackendForFamily"
	ReasonElsewhere         Reason = "BackendElsewhere"
	ReasonFailed            Reason = "ProgrammingFailed"
)

// Kinds of objects that verdicts are about.
const (
	KindService     = "Service"
	KindEgressShard = "EgressShard"
)

// Verdict is what became of one object on this node.
type Verdict struct {
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace"`
	Name       string `json:"name"`
	Programmed bool   `json:"programmed"`
	Reason     Reason `json:"reason"`
	Message    string `json:"message"`
	// Addresses are the public addresses that the object holds, sorted.
	Addresses []netip.Addr `json:"addresses"`
	// PrimaryEgress are those that a backend on this node leaves with, at most one per family.
	PrimaryEgress []netip.Addr `json:"primaryEgress"`
	// Generation is that of an EgressShard that was judged.
	Generation int64 `json:"-"`
	// Verified are the endpoints of a Service with externalTrafficPolicy Cluster that Pods of this node have: it vouches for them, so that other
	// nodes may translate to them.
	Verified []netip.Addr `json:"-"`
	// Reporter is the node that writes the verdict to the object's status; every node names the same.
	Reporter string `json:"-"`
	// Unsure is true when a family has several equally good backends and this node translates to none of them: it cannot know whether
	// another node does, which knows better what to report.
	Unsure bool `json:"-"`
}

// Key names the object.
func (v Verdict) Key() Key { return Key{Namespace: v.Namespace, Name: v.Name} }

// Equal reports whether both say the same.
func (v Verdict) Equal(o Verdict) bool {
	return v.Kind == o.Kind && v.Namespace == o.Namespace && v.Name == o.Name && v.Programmed == o.Programmed &&
		v.Reason == o.Reason && v.Message == o.Message && v.Reporter == o.Reporter && v.Unsure == o.Unsure && v.Generation == o.Generation &&
		slices.Equal(v.Verified, o.Verified) && slices.Equal(v.Addresses, o.Addresses) && slices.Equal(v.PrimaryEgress, o.PrimaryEgress)
}

// CompareVerdicts orders by kind, Services first, and name.
func CompareVerdicts(a, b Verdict) int { return compareVerdicts(&a, &b) }

func compareVerdicts(a, b *Verdict) int {
	return cmp.Or(strings.Compare(b.Kind, a.Kind), CompareKeys(a.Key(), b.Key()))
}

// settleVerdicts judges the dirty objects anew, and forgets the Services of which nothing is left.
func (e *Engine) settleVerdicts(d *dirty) (changed []Verdict, gone []Key) {
	var news []*Verdict
	for _, n := range d.verdicts {
		n.unjudged = false
		if n.resolution == nil {
			if n.verdict != nil {
				n.verdict = nil
				gone = append(gone, n.key)
			}
			continue
		}
		after := e.judge(n)
		if n.verdict != nil && n.verdict.Equal(after) {
			continue
		}
		n.verdict = &after
		news = append(news, n.verdict)
	}
	slices.SortFunc(news, compareVerdicts)
	changed = values(news)
	for _, n := range d.services {
		if n.service == nil && len(n.slices) == 0 {
			delete(e.services, n.key)
		}
	}
	slices.SortFunc(gone, CompareKeys)
	if d.shards || d.host {
		changed = append(changed, e.settleShardVerdicts()...)
	}
	return changed, gone
}

// finding is one thing that is wrong, or worth knowing, about an object.
type finding struct {
	reason  Reason
	message string
}

// judgement collects the findings on one Service.
type judgement struct {
	findings []finding
	notes    []string
	served   []string
}

// find adds a finding; what holds for several addresses in the same words is said once.
func (j *judgement) find(r Reason, format string, args ...any) {
	f := finding{r, fmt.Sprintf(format, args...)}
	if !slices.Contains(j.findings, f) {
		j.findings = append(j.findings, f)
	}
}

// judge says what became of a Service: the first finding gives the reason, in the order in which an operator has to mend them.
func (e *Engine) judge(n *entry) Verdict {
	s, r := n.service, n.resolution
	v := Verdict{Kind: KindService, Namespace: s.key.Namespace, Name: s.key.Name, Addresses: []netip.Addr{}, PrimaryEgress: []netip.Addr{}}
	j := &judgement{notes: slices.Clone(s.notes)}
	e.judgeAddresses(r, j)
	var held [2][]netip.Addr
	for _, c := range r.permitted {
		g, f := c.grantTo(n), familyOf(c.addr)
		judgeGrant(c.addr, g, j)
		if g.any() {
			held[f] = append(held[f], c.addr)
		}
	}
	v.Addresses = append(append(v.Addresses, held[ipv4]...), held[ipv6]...)
	e.judgeBackends(r, held, j)
	for _, f := range families {
		if primary := r.primary(f); primary.IsValid() {
			v.PrimaryEgress = append(v.PrimaryEgress, primary)
		}
	}
	v.Reporter = e.reporter(r)
	for _, f := range families {
		c := r.choices[f]
		if s.spread {
			v.Verified = append(v.Verified, c.verified...)
		}
		v.Unsure = v.Unsure || len(held[f]) > 0 && len(c.rivals) > 0 && !c.found()
	}
	j.conclude(&v)
	return v
}

// judgeAddresses reports what the status of the Service lists and policy refuses.
func (e *Engine) judgeAddresses(r *resolution, j *judgement) {
	s := r.service
	switch {
	case len(s.addresses) > 0 || len(s.invalid) > 0:
	case s.ignored:
		j.find(ReasonNoAddress, "status.loadBalancer.ingress has only hostnames and addresses with ipMode Proxy, which are not translated here")
	default:
		j.find(ReasonNoAddress, "status.loadBalancer.ingress has no IP address yet; a load-balancer controller has to assign one")
	}
	for _, why := range s.invalid {
		j.find(ReasonInvalidAddress, "%s", why)
	}
	for _, why := range r.refused {
		j.find(ReasonNotPermitted, "%s and is never captured", why)
	}
}

// judgeGrant reports what older Services hold, each with its ports.
func judgeGrant(a netip.Addr, g *grant, j *judgement) {
	if g.lostTo != nil {
		j.find(ReasonAddressConflict, "%s belongs to the older %s %s: delete one of the two or give this one another address", a, g.lostToKind, g.lostTo)
		return
	}
	if !g.any() && len(g.lost) == 0 {
		j.find(ReasonNoPorts, "the port list has nothing to forward: set spec.ports, or %s: \"true\"", AnnotationWholeIP)
	}
	var owners []Key
	ports := map[Key][]string{}
	for _, p := range g.lost {
		if _, known := ports[*p.owner]; !known {
			owners = append(owners, *p.owner)
		}
		ports[*p.owner] = append(ports[*p.owner], fmt.Sprintf("%d/%s", p.port, p.protocol))
	}
	for _, owner := range owners {
		j.find(ReasonPortConflict, "%s of %s belongs to the older Service %s: take it out of one of the two or give this one another address",
			strings.Join(ports[owner], ", "), a, owner)
	}
}

// judgeBackends reports, for the families in which the Service holds addresses, why they do not reach a backend.
func (e *Engine) judgeBackends(r *resolution, held [2][]netip.Addr, j *judgement) {
	var without []family
	for _, f := range families {
		if len(held[f]) == 0 {
			continue
		}
		c := r.choices[f]
		if len(c.rivals) > 0 {
			j.find(ReasonMultipleBackends, "%s has %d equally good backends (%s); %s", f, len(c.rivals), joinAddrs(c.rivals), rivalOutcome(c))
		}
		switch {
		case c.found():
			e.judgeFound(r, f, held[f], j)
			j.notes = append(j.notes, c.refused...)
		case len(c.rivals) > 0:
			j.notes = append(j.notes, c.refused...)
		case len(c.refused) > 0:
			j.find(ReasonBackendUnverified, "%s", strings.Join(c.refused, "; "))
		default:
			without = append(without, f)
		}
	}
	for _, f := range without {
		reason := ReasonNoBackend
		if other := r.choices[1-f]; other.found() || len(other.rivals) > 0 {
			reason = ReasonNoBackendFamily
		}
		j.find(reason, "%s has no %s endpoint", joinAddrs(held[f]), f)
	}
}

func rivalOutcome(c choice) string {
	if c.found() {
		return "the programmed one, " + c.addr.String() + ", stays until one remains"
	}
	return "nothing is programmed until one remains"
}

// judgeFound reports on a family that has a backend.
func (e *Engine) judgeFound(r *resolution, f family, held []netip.Addr, j *judgement) {
	s, c := r.service, r.choices[f]
	switch {
	case !c.local && c.outranked:
		j.find(ReasonElsewhere, "backend %s is better placed on node %s", c.addr, strings.Join(c.nodes, ", "))
		return
	case !c.local && !s.spread && e.agentless(c):
		j.find(ReasonNoBackend, "backend %s is on node %s, which runs no agent: nobody translates for it", c.addr, strings.Join(c.nodes, ", "))
		return
	case !c.local && !s.spread:
		j.find(ReasonElsewhere, "backend %s is on node %s", c.addr, strings.Join(c.nodes, ", "))
		return
	case c.unvouched && e.agentless(c):
		j.find(ReasonBackendUnverified, "backend %s is on node %s, which runs no agent to verify it; --trust-slices believes EndpointSlices",
			c.addr, strings.Join(c.nodes, ", "))
		return
	case c.unvouched:
		j.find(ReasonBackendUnverified, "backend %s: the agent of node %s does not confirm that a Pod of namespace %s has this address",
			c.addr, strings.Join(c.nodes, ", "), s.key.Namespace)
		return
	}
	if s.whole {
		j.served = append(j.served, joinAddrs(held)+" to "+c.addr.String())
		return
	}
	e.judgePorts(r, f, held, j)
}

// judgePorts reports on a port list that has a backend.
func (e *Engine) judgePorts(r *resolution, f family, held []netip.Addr, j *judgement) {
	s, c := r.service, r.choices[f]
	open := slices.DeleteFunc(slices.Clone(held), func(a netip.Addr) bool {
		return !slices.ContainsFunc(e.claims[a].record.Ports, func(p Port) bool { return p.Owner == s.key })
	})
	if len(open) > 0 {
		j.served = append(j.served, "ports of "+joinAddrs(open)+" to "+c.addr.String())
	} else if primary := r.primary(f); primary.IsValid() {
		j.served = append(j.served, c.addr.String()+" leaves as "+primary.String())
	}
	if !c.servesPorts() {
		j.find(ReasonNoBackend, "backend %s is neither ready nor serving: its ports are closed", c.addr)
		return
	}
	for _, p := range s.ports {
		if _, ok := c.target(p); !ok {
			j.find(ReasonNoBackend, "the endpoint %s has no target for port %d/%s %q", c.addr, p.port, p.protocol, p.name)
		}
	}
}

// primary is the address of the Service that its backend on this node leaves with in a family, if any.
func (r *resolution) primary(f family) netip.Addr {
	if w := r.choices[f].workload; w != nil && w.record != nil && w.record.PrimaryOwner == r.service.key {
		return w.record.Primary
	}
	return netip.Addr{}
}

// conclude turns findings into reason and message.
func (j *judgement) conclude(v *Verdict) {
	order := []Reason{
		ReasonNoAddress, ReasonInvalidAddress, ReasonNotPermitted, ReasonAddressConflict, ReasonPortConflict, ReasonNoPorts,
		ReasonMultipleBackends, ReasonBackendUnverified, ReasonNoBackend, ReasonNoBackendFamily, ReasonElsewhere,
	}
	slices.SortStableFunc(j.findings, func(a, b finding) int {
		return cmp.Compare(slices.Index(order, a.reason), slices.Index(order, b.reason))
	})
	v.Programmed, v.Reason = len(j.findings) == 0, ReasonProgrammed
	var parts []string
	for _, f := range j.findings {
		parts = append(parts, f.message)
	}
	if len(j.findings) > 0 {
		v.Reason = j.findings[0].reason
		for _, s := range j.served {
			parts = append(parts, "programmed: "+s)
		}
	} else {
		parts = append(parts, j.served...)
	}
	v.Message = strings.Join(append(parts, j.notes...), "; ")
}

// reporter names the node that writes the status (R20): one that hosts the backend; without a backend the best candidate's; without
// candidates the first node that runs an agent. A refused endpoint on this node still makes it the candidate: nobody else can refuse it.
func (e *Engine) reporter(r *resolution) string {
	for _, found := range []bool{true, false} {
		for _, f := range families {
			c := r.choices[f]
			if i := slices.IndexFunc(c.nodes, e.rails.runsAgent); i >= 0 && (c.found() || !found) {
				return c.nodes[i]
			}
		}
	}
	return e.rails.firstNode
}

func joinAddrs(addrs []netip.Addr) string {
	var b strings.Builder
	for i, a := range addrs {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	return b.String()
}
