// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// compare says how the table differs from the layout in anything but elements, "" for not at all. It stops at the first
// difference, because any of them means that the table is written anew.
func (t *Table) compare(c *conn, have *nftables.Table) (string, error) {
	if have.Flags != t.flags {
		return fmt.Sprintf("table flags are %#x, not %#x", have.Flags, t.flags), nil
	}
	// The kernel counts chains, sets, named objects and flowtables: with ours all there, one more cannot hide.
	if want := t.layout.objects(); have.Use != want {
		return fmt.Sprintf("table has %d objects, not %d", have.Use, want), nil
	}
	table := t.kernelTable()
	for s := range numSets {
		if reason, err := t.compareSet(c, table, s); reason != "" || err != nil {
			return reason, err
		}
	}
	for _, ch := range t.layout.chains {
		if reason, err := compareChain(c, table, ch); reason != "" || err != nil {
			return reason, err
		}
	}
	return "", nil
}

func (t *Table) compareSet(c *conn, table *nftables.Table, s setID) (string, error) {
	want := t.layout.defs[s].kernelSet(table)
	var have *nftables.Set
	err := c.do(func() (err error) {
		have, err = c.GetSetByName(table, want.Name)
		return err
	})
	switch {
	case isMissing(err):
		return "set " + want.Name + " is missing", nil
	case err != nil && isKernelError(err):
		return "", fmt.Errorf("read set %s: %w", want.Name, err)
	case err != nil:
		return fmt.Sprintf("set %s: %v", want.Name, err), nil
	case !sameSet(want, have):
		return "set " + want.Name + " is of another kind or comment", nil
	}
	return "", nil
}

func sameSet(want, have *nftables.Set) bool {
	return have.KeyType == want.KeyType && have.DataType == want.DataType && have.Comment == want.Comment &&
		have.Interval == want.Interval && have.Concatenation == want.Concatenation && have.IsMap == want.IsMap &&
		!have.Anonymous && !have.Constant && !have.Dynamic && have.HasTimeout == want.HasTimeout && have.Timeout == want.Timeout && !have.AutoMerge && have.Size == 0
}

func compareChain(c *conn, table *nftables.Table, want chain) (string, error) {
	var have *nftables.Chain
	err := c.do(func() (err error) {
		have, err = c.ListChain(table, want.name)
		return err
	})
	switch {
	case isMissing(err):
		return "chain " + want.name + " is missing", nil
	case err != nil:
		return "", fmt.Errorf("read chain %s: %w", want.name, err)
	case !sameChain(want.kernelChain(table), have):
		return "chain " + want.name + " is of another type, hook, priority or policy", nil
	}
	rules, err := readRules(c, have)
	if err != nil {
		return "", err
	}
	if len(rules) != len(want.rules) {
		return fmt.Sprintf("chain %s has %d rules, not %d", want.name, len(rules), len(want.rules)), nil
	}
	for i, r := range rules {
		same, err := sameRule(c, want.rules[i], r)
		if err != nil {
			return "", fmt.Errorf("chain %s, rule %d: %w", want.name, i, err)
		}
		if !same {
			return fmt.Sprintf("chain %s has another rule %d", want.name, i), nil
		}
	}
	return "", nil
}

func sameChain(want, have *nftables.Chain) bool {
	if want.Hooknum == nil || have.Hooknum == nil {
		return want.Hooknum == nil && have.Hooknum == nil
	}
	return *want.Hooknum == *have.Hooknum && *want.Priority == *have.Priority && want.Type == have.Type &&
		have.Policy != nil && *want.Policy == *have.Policy
}

// sameRule compares comments and expressions. Those of the kernel, parsed by the library, and ours are marshalled by the
// same code, so that order and form of attributes do not matter.
func sameRule(c *conn, want rule, have *nftables.Rule) (bool, error) {
	if !bytes.Equal(have.UserData, ruleComment(want.comment)) {
		return false, nil
	}
	values, err := anonymousValues(c, have)
	if err != nil {
		return false, err
	}
	ours, err := fingerprint(want.exprs, content(want.anonymous.elements))
	if err != nil {
		return false, err
	}
	kernels, err := fingerprint(have.Exprs, values)
	return err == nil && bytes.Equal(ours, kernels), nil
}

// anonymousPrefix starts the names that the kernel gives to anonymous sets; no set of ours does.
const anonymousPrefix = "__"

// anonymousValues returns the elements of the anonymous set that a rule of the kernel looks up, sorted.
func anonymousValues(c *conn, r *nftables.Rule) ([]byte, error) {
	var values []byte
	for _, e := range r.Exprs {
		look, ok := e.(*expr.Lookup)
		if !ok || !strings.HasPrefix(look.SetName, anonymousPrefix) {
			continue
		}
		err := c.do(func() error {
			elements, err := c.GetSetElements(&nftables.Set{Table: r.Table, Name: look.SetName})
			values = append(values, content(elements)...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read set %s: %w", look.SetName, err)
		}
	}
	return values, nil
}

// fingerprint is what two rules that do the same have in common: everything but counts and names of anonymous sets.
func fingerprint(exprs []expr.Any, values []byte) ([]byte, error) {
	var sum []byte
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Counter:
			*e = expr.Counter{}
		case *expr.Lookup:
			e.SetID = 0
			if strings.HasPrefix(e.SetName, anonymousPrefix) {
				e.SetName = ""
			}
		}
		b, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, err
		}
		sum = append(sum, b...)
	}
	return append(sum, values...), nil
}
