// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"cmp"
	"net/netip"
	"slices"
)

// Method says how a public address is translated.
type Method string

// The methods of a Translation.
const (
	WholeIP  Method = "WholeIP"
	PortList Method = "PortList"
	ByShard  Method = "Shard"
)

// Translation is what this node does for one public address on behalf of one owner.
type Translation struct {
	Public netip.Addr `json:"public"`
	Family string     `json:"family"`
	Method Method     `json:"method"`
	// Backend is invalid for a shard, which stands for many sources.
	Backend netip.Addr       `json:"backend"`
	Ports   []TranslatedPort `json:"ports,omitempty"`
	Primary bool             `json:"primary"`
	Owner   string           `json:"owner"`
}

// TranslatedPort is one entry of a PortList.
type TranslatedPort struct {
	Protocol   string `json:"protocol"`
	Port       uint16 `json:"port"`
	TargetPort uint16 `json:"targetPort"`
}

// Plan is what a node translates, and what became of each object; sorted, so that two plans of the same objects are the same text.
type Plan struct {
	Node         string        `json:"node"`
	Translations []Translation `json:"translations"`
	Verdicts     []Verdict     `json:"verdicts"`
}

// Plan lists what the engine would have the kernel translate.
func (e *Engine) Plan() Plan {
	p := Plan{Node: e.config.Node, Translations: []Translation{}, Verdicts: []Verdict{}}
	for _, c := range e.claims {
		for i := range c.grants {
			if t, ok := c.translation(&c.grants[i]); ok {
				p.Translations = append(p.Translations, t)
			}
		}
	}
	p.Translations = append(p.Translations, e.shardTranslations()...)
	slices.SortFunc(p.Translations, func(a, b Translation) int {
		return cmp.Or(a.Public.Compare(b.Public), cmp.Compare(a.Owner, b.Owner))
	})
	p.Verdicts = append(p.Verdicts, e.Verdicts()...)
	return p
}

// translation describes what one grant comes to; false when it is not translated here in any direction.
func (c *claim) translation(g *grant) (Translation, bool) {
	s, f := g.entry.service, familyOf(c.addr)
	backend := &g.entry.resolution.choices[f]
	if !g.any() || !s.translates(backend) {
		return Translation{}, false
	}
	t := Translation{Public: c.addr, Family: f.String(), Method: PortList, Backend: backend.addr, Owner: s.key.String()}
	if g.whole {
		t.Method = WholeIP
	}
	for _, p := range c.record.Ports {
		if p.Owner == s.key {
			t.Ports = append(t.Ports, TranslatedPort{p.Protocol.String(), p.Port, p.Target.Port()})
		}
	}
	if w := backend.workload; w != nil && w.record != nil {
		t.Primary = w.record.Primary == c.addr && w.record.PrimaryOwner == s.key
	}
	return t, t.Method == WholeIP || len(t.Ports) > 0 || t.Primary
}
