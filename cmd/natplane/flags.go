// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/natplane/natplane/nat"
)

// policyFlags are the flags that decide what is translated; agent and plan share them, so that a plan foretells the agent.
type policyFlags struct {
	node       string
	proxyNames []string
	cluster    prefixes
	public     prefixes
	masquerade prefixes
	shard      prefixes
	shardRole  string
	shardEcho  bool
	shardPorts portRange
	tenants    tenants
	markMask   uint32
	uplinks    []string
	agentNodes selector
}

func (p *policyFlags) register(fs *pflag.FlagSet) {
	fs.StringVar(&p.node, "node-name", "", "name of this machine's Node object (required)")
	fs.StringArrayVar(&p.proxyNames, "proxy-name", nat.DefaultProxyNames(),
		"value of the label "+nat.LabelProxyName+" that delegates a Service; repeatable")
	fs.Var(&p.cluster, "cluster-cidr", "pod or service range, never source-translated; repeatable; added to what Node objects say")
	fs.Var(&p.public, "public-cidr", "range that public addresses must lie in; repeatable; without it every address outside the cluster may be public")
	fs.Var(&p.masquerade, "masquerade-source-cidr", "sources that are masqueraded towards machines, as node addresses always are; repeatable")
	fs.Var(&p.shard, "shard-source-cidr", "private sources that an EgressShard translates; repeatable (default ULA, RFC 1918, 100.64.0.0/10)")
	fs.StringVar(&p.shardRole, "shard", string(nat.ShardAuto),
		"serve EgressShards: auto (while one names the node), on (private sources stay in even without one), off")
	fs.BoolVar(&p.shardEcho, "shard-echo", false, "answer echo requests from outside to the shard's addresses, to see whether they arrive here")
	fs.Var(&p.shardPorts, "shard-ports", "source ports of connections through the shard (default the kernel's: all from 1024 but for sources below that, which get one below it)")
	fs.Var(&p.tenants, "tenant-interface", "interface of a tenant whose private addresses may be in use elsewhere too, \"NAME*\" for all that begin so, and the routing table "+
		"that leads back (default that of the interface's VRF, or of the ip rule for what arrives on it); repeatable")
	fs.Uint32Var(&p.markMask, "tenant-mark-mask", nat.DefaultTenantMarkMask, "bits of the packet mark that replies to tenants carry the table in")
	fs.Var(&p.agentNodes, "agent-nodes", "label selector of the Nodes that run the agent: one of them reports on a Service that has no backend (default all)")
	fs.StringArrayVar(&p.uplinks, "uplink", nil, "interface that leads to the outside; repeatable (default the interfaces of the default routes)")
}

// config checks the flags and returns them as policy knows them.
func (p *policyFlags) config() (nat.Config, error) {
	c := nat.Config{
		Node:            p.node,
		ProxyNames:      p.proxyNames,
		ClusterCIDRs:    p.cluster,
		PublicCIDRs:     p.public,
		MasqueradeCIDRs: p.masquerade,
		ShardCIDRs:      p.shard,
		ShardRole:       nat.ShardRole(p.shardRole),
		ShardEcho:       p.shardEcho,
		ShardPorts:      nat.PortRange(p.shardPorts),
		Tenants:         nat.Tenants{Flags: p.tenants, MarkMask: p.markMask},
		AgentNodes:      p.agentNodes.Selector,
	}
	if len(c.ShardCIDRs) == 0 {
		c.ShardCIDRs = nat.DefaultShardCIDRs()
	}
	if err := c.Validate(); err != nil {
		return nat.Config{}, fmt.Errorf("%w: %w", errUsage, err)
	}
	for _, name := range p.uplinks {
		if name == "" || len(name) > 15 { // IFNAMSIZ is 16 with the closing zero
			return nat.Config{}, usagef("--uplink %q is not an interface name", name)
		}
	}
	return c, nil
}

// portRange is a flag of one range of ports.
type portRange nat.PortRange

// String is empty for no range, so that --help shows no default.
func (p *portRange) String() string {
	if nat.PortRange(*p).IsZero() {
		return ""
	}
	return nat.PortRange(*p).String()
}

func (p *portRange) Type() string { return "LO-HI" }

func (p *portRange) Set(s string) error {
	r, err := nat.ParsePortRange(s)
	if err != nil {
		return err
	}
	*p = portRange(r)
	return nil
}

// tenants is a repeatable flag of tenants' interfaces.
type tenants []nat.TenantFlag

// String is empty for an empty list, so that --help shows no default.
func (t *tenants) String() string {
	var texts []string
	for _, f := range *t {
		texts = append(texts, f.String())
	}
	return strings.Join(texts, ",")
}

func (t *tenants) Type() string { return "IF[=TABLE]" }

func (t *tenants) Set(s string) error {
	f, err := nat.ParseTenant(s)
	if err == nil {
		*t = append(*t, f)
	}
	return err
}

// selector is a flag of one label selector; without it there is none.
type selector struct{ labels.Selector }

// String is empty for no selector, so that --help shows no default.
func (s *selector) String() string {
	if s.Selector == nil {
		return ""
	}
	return s.Selector.String()
}

func (s *selector) Type() string { return "SELECTOR" }

func (s *selector) Set(text string) (err error) {
	s.Selector, err = labels.Parse(text)
	return err
}

// prefixes is a repeatable flag of IP prefixes; a bare address stands for itself.
type prefixes []netip.Prefix

// String is empty for an empty list, so that --help shows no default.
func (p *prefixes) String() string {
	if len(*p) == 0 {
		return ""
	}
	return fmt.Sprint([]netip.Prefix(*p))
}

func (p *prefixes) Type() string { return "CIDR" }

func (p *prefixes) Set(s string) error {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		addr, addrErr := netip.ParseAddr(s)
		if addrErr != nil || addr.Zone() != "" {
			return fmt.Errorf("%q is neither a prefix nor an address", s)
		}
		prefix = netip.PrefixFrom(addr, addr.BitLen())
	}
	if prefix.Addr().Is4In6() {
		return fmt.Errorf("%q: write IPv4 ranges as IPv4", s)
	}
	*p = append(*p, prefix.Masked())
	return nil
}

// parse reads the flags of a command that takes no other arguments.
func parse(fs *pflag.FlagSet, args []string, io stdio) error {
	fs.SetOutput(io.out)
	fs.SortFlags = false
	if err := fs.Parse(args); err != nil {
		if err == pflag.ErrHelp {
			return err
		}
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if fs.NArg() > 0 {
		return usagef("unexpected argument %q", fs.Arg(0))
	}
	return nil
}

// outputFlag is -o.
func outputFlag(fs *pflag.FlagSet) *string {
	return fs.StringP("output", "o", "table", "output: table or json")
}

func checkOutput(format string) error {
	if format != "table" && format != "json" {
		return usagef("-o %q: want table or json", format)
	}
	return nil
}
