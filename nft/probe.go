// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// feature is something that the layout needs of the kernel.
type feature struct {
	name string
	// since is the kernel version that brought it.
	since string
	// queue uses it in a scratch table.
	queue func(c *nftables.Conn, t *nftables.Table) error
}

// features lists what not every kernel has, the oldest first.
func features() []feature {
	return []feature{
		{"tables of family inet", "3.14", func(*nftables.Conn, *nftables.Table) error { return nil }},
		{"fib expression in family inet (CONFIG_NFT_FIB_INET)", "4.10", ruleFeature(nftables.ChainTypeFilter, notLocalSource())},
		{"ct original ip daddr (CONFIG_NFT_CT)", "4.17", ruleFeature(nftables.ChainTypeFilter,
			match{&expr.Ct{Key: expr.CtKeyDSTIP, Register: reg1, Direction: expr.CtDirOriginal}})},
		{"NAT in family inet (CONFIG_NFT_NAT)", "5.2", ruleFeature(nftables.ChainTypeNAT,
			match{families()[0].load(12, reg1), families()[0].toAddress(expr.NATTypeSourceNAT)})},
		{"masquerade in family inet (CONFIG_NFT_MASQ)", "5.2", ruleFeature(nftables.ChainTypeNAT, masquerade())},
		{"redirect in family inet (CONFIG_NFT_REDIR)", "5.2", func(c *nftables.Conn, t *nftables.Table) error {
			kc := chain{name: "probe", hook: nftables.ChainHookPrerouting, kind: nftables.ChainTypeNAT, priority: priorityIngressNAT}.kernelChain(t)
			c.AddChain(kc)
			c.AddRule(&nftables.Rule{Table: t, Chain: kc, Exprs: match{&expr.Redir{}}})
			return nil
		}},
		{"concatenated ranges in sets", "5.6", func(c *nftables.Conn, t *nftables.Table) error {
			def := setDef{name: "ranges", key: []part{address, address}, interval: true}
			return c.AddSet(def.kernelSet(t), nil)
		}},
	}
}

func ruleFeature(kind nftables.ChainType, m match) func(*nftables.Conn, *nftables.Table) error {
	return func(c *nftables.Conn, t *nftables.Table) error {
		kc := chain{name: "probe", hook: nftables.ChainHookPostrouting, kind: kind, priority: priorityEgressNAT}.kernelChain(t)
		c.AddChain(kc)
		c.AddRule(&nftables.Rule{Table: t, Chain: kc, Exprs: m})
		return nil
	}
}

// probe tries each feature and then ownership of tables, which it reports: that one is not needed. A scratch table is made
// and deleted within one transaction, so nothing of it is ever seen, whatever happens to this process.
func probe(c *conn, fs []feature) (owner bool, err error) {
	for _, f := range fs {
		if err := try(c, nftables.TableFlagDormant, f.queue); err != nil {
			if errors.Is(err, unix.EPERM) {
				return false, fmt.Errorf("nftables: not permitted to change tables, CAP_NET_ADMIN is needed: %w", err)
			}
			return false, fmt.Errorf("nftables: the kernel lacks %s, which came with kernel %s: %w", f.name, f.since, err)
		}
	}
	none := func(*nftables.Conn, *nftables.Table) error { return nil }
	err = try(c, nftables.TableFlagOwner|nftables.TableFlagPersist, none)
	return err == nil, nil
}

func try(c *conn, flags nftables.TableFlags, queue func(*nftables.Conn, *nftables.Table) error) error {
	// The port is unique in the namespace, so two agents that start together do not meet.
	t := &nftables.Table{Name: fmt.Sprintf("%s_probe_%d", tableName, c.port), Family: nftables.TableFamilyINet, Flags: flags}
	c.AddTable(t)
	if err := queue(c.Conn, t); err != nil {
		return err
	}
	c.DelTable(t)
	return c.do(c.Flush)
}
