// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"

	"github.com/natplane/natplane/nat"
)

// The priorities of the base chains. Ours see a packet before the NAT chains of others (dstnat is -100, srcnat 100), so that
// our translation wins whatever the order of start; each guard stands on the private side of its NAT chain.
const (
	priorityIngressGuard = -120
	priorityIngressNAT   = -110
	priorityEgressNAT    = 90
	priorityEgressGuard  = 110
)

// rule is one rule and why it is there.
type rule struct {
	comment string
	exprs   []expr.Any
	// anonymous is the set or map that the rule looks up under the empty name.
	anonymous anonymous
}

// anonymous is a set, or a map when it has data, that belongs to one rule.
type anonymous struct {
	key, data nftables.SetDatatype
	elements  []nftables.SetElement
}

func (a *anonymous) add(key, value []byte) {
	a.elements = append(a.elements, nftables.SetElement{Key: key, Val: value})
}

// bytesOf is an anonymous set of one-byte values.
func bytesOf(t nftables.SetDatatype, values []byte) anonymous {
	a := anonymous{key: t}
	for i := range values {
		a.add(values[i:i+1], nil)
	}
	return a
}

// content is what two equal sets have in common, whatever the order of their elements.
func content(elements []nftables.SetElement) []byte {
	sorted := slices.SortedFunc(slices.Values(elements), func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	var all []byte
	for _, e := range sorted {
		all = append(append(all, e.Key...), e.Val...)
	}
	return all
}

// chain is a chain with its rules, in order.
type chain struct {
	name string
	// hook is nil for a chain that others jump to; kind and priority are those of a base chain.
	hook     *nftables.ChainHook
	kind     nftables.ChainType
	priority nftables.ChainPriority
	rules    []rule
}

// layout is all of the table but the elements.
type layout struct {
	defs   []setDef
	chains []chain
	// sum is what the comment of each rule ends in; see layout.sign.
	sum string
}

// newLayout returns the layout that this version of the package programs, with what the flags of the agent add to it.
func newLayout(shardPorts nat.PortRange) layout {
	return layout{
		defs: setDefs(),
		chains: []chain{
			{name: sourceRanges, rules: sourceRangesRules()},
			{name: translate, rules: translateRules()},
			{name: ingressGuard, hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeFilter, priority: priorityIngressGuard, rules: ingressGuardRules()},
			{name: localGuard, hook: nftables.ChainHookOutput, kind: nftables.ChainTypeFilter, priority: priorityIngressGuard, rules: localGuardRules()},
			{name: ingressNAT, hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeNAT, priority: priorityIngressNAT, rules: ingressNATRules()},
			{name: localNAT, hook: nftables.ChainHookOutput, kind: nftables.ChainTypeNAT, priority: priorityIngressNAT, rules: localNATRules()},
			{name: egressNAT, hook: nftables.ChainHookPostrouting, kind: nftables.ChainTypeNAT, priority: priorityEgressNAT, rules: egressNATRules(shardPorts)},
			{name: egressGuard, hook: nftables.ChainHookPostrouting, kind: nftables.ChainTypeFilter, priority: priorityEgressGuard, rules: egressGuardRules()},
			{name: leak, rules: leakRules()},
		},
	}
}

// newRule builds a rule from its parts.
func newRule(comment string, parts ...match) rule {
	r := rule{comment: comment}
	for _, p := range parts {
		r.exprs = append(r.exprs, p...)
	}
	return r
}

// objects is the number of chains and sets, which the kernel counts for the table (NFTA_TABLE_USE). Anonymous sets belong to
// their rule and are not counted.
func (l layout) objects() uint32 { return uint32(len(l.defs) + len(l.chains)) }

// queue adds everything but the elements to the transaction.
func (l layout) queue(c *nftables.Conn, t *nftables.Table) error {
	for _, def := range l.defs {
		if err := c.AddSet(def.kernelSet(t), nil); err != nil {
			return fmt.Errorf("set %s: %w", def.name, err)
		}
	}
	for _, ch := range l.chains {
		c.AddChain(ch.kernelChain(t)) // all before the first rule, which may jump to any
	}
	for _, ch := range l.chains {
		for i, r := range ch.rules {
			if err := r.queue(c, ch.kernelChain(t)); err != nil {
				return fmt.Errorf("chain %s, rule %d: %w", ch.name, i, err)
			}
		}
	}
	return nil
}

func (r rule) queue(c *nftables.Conn, kc *nftables.Chain) error {
	exprs := r.exprs
	if len(r.anonymous.elements) > 0 {
		a := r.anonymous
		set := &nftables.Set{
			Table: kc.Table, Anonymous: true, Constant: true, KeyType: a.key, DataType: a.data, IsMap: a.data.Name != "",
		}
		if err := c.AddSet(set, a.elements); err != nil {
			return fmt.Errorf("anonymous set: %w", err)
		}
		exprs = nameAnonymous(exprs, set.Name, set.ID)
	}
	c.AddRule(&nftables.Rule{Table: kc.Table, Chain: kc, Exprs: exprs, UserData: ruleComment(r.comment)})
	return nil
}

// nameAnonymous returns the expressions with the lookup of the rule's anonymous set filled in.
func nameAnonymous(exprs []expr.Any, name string, id uint32) []expr.Any {
	named := make([]expr.Any, len(exprs))
	for i, e := range exprs {
		if look, ok := e.(*expr.Lookup); ok && look.SetName == "" {
			filled := *look
			filled.SetName, filled.SetID = name, id
			e = &filled
		}
		named[i] = e
	}
	return named
}

func ruleComment(s string) []byte { return userdata.AppendString(nil, userdata.TypeComment, s) }

func (c chain) kernelChain(t *nftables.Table) *nftables.Chain {
	kc := &nftables.Chain{Name: c.name, Table: t}
	if c.hook != nil {
		policy := nftables.ChainPolicyAccept
		kc.Hooknum, kc.Type, kc.Priority, kc.Policy = c.hook, c.kind, nftables.ChainPriorityRef(c.priority), &policy
	}
	return kc
}

// kernelSet returns the set as the library sends it.
func (d setDef) kernelSet(t *nftables.Table) *nftables.Set {
	s := &nftables.Set{
		Table: t, Name: d.name, Comment: d.comment, Interval: d.interval, IsMap: len(d.value) > 0,
		KeyType: d.datatype(d.key), Concatenation: len(d.key) > 1 && d.interval,
		KeyByteOrder: binaryutil.BigEndian, HasTimeout: d.timeout > 0, Timeout: d.timeout,
	}
	if s.IsMap {
		s.DataType = d.datatype(d.value)
	}
	if d.key[0] == link {
		s.KeyByteOrder = binaryutil.NativeEndian // as nft writes it; it prints names wrongly otherwise
	}
	return s
}

func (d setDef) datatype(parts []part) nftables.SetDatatype {
	types := make([]nftables.SetDatatype, len(parts))
	for i, p := range parts {
		switch p {
		case address:
			types[i] = nftables.TypeIPAddr
			if d.ipv6 {
				types[i] = nftables.TypeIP6Addr
			}
		case protocol:
			types[i] = nftables.TypeInetProto
		case port:
			types[i] = nftables.TypeInetService
		case link:
			types[i] = nftables.TypeIFName
		}
	}
	if len(types) == 1 {
		return types[0]
	}
	return nftables.MustConcatSetType(types...)
}
