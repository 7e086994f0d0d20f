// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels and annotations of the Service contract.
const (
	LabelProxyName       = "service.kubernetes.io/service-proxy-name"
	AnnotationWholeIP    = "networking.cozystack.io/wholeIP"
	AnnotationAllowICMP  = "networking.cozystack.io/allowICMP"
	AnnotationPrimary    = "networking.cozystack.io/primaryEgress"
	labelSliceOfService  = "kubernetes.io/service-name"
	annotationTrue       = "true"
	annotationFalse      = "false"
	defaultProxyCozy     = "cozy-proxy"
	defaultProxyNatplane = "natplane"
)

// Config is what the operator sets; it does not change while an Engine lives.
type Config struct {
	// Node is the name of the Node object that this agent serves.
	Node string
	// ProxyNames are the label values that delegate a Service (R1).
	ProxyNames []string
	// ClusterCIDRs are pod and service ranges, in addition to what Node objects say (R9).
	ClusterCIDRs []netip.Prefix
	// PublicCIDRs, when not empty, are the only addresses that may become public (R7).
	PublicCIDRs []netip.Prefix
	// MasqueradeCIDRs are sources that are masqueraded as node addresses are (R10).
	MasqueradeCIDRs []netip.Prefix
	// ShardCIDRs are the private sources of a shard (R19).
	ShardCIDRs []netip.Prefix
	// ShardRole says whether this node serves EgressShards; empty is ShardAuto.
	ShardRole ShardRole
	// ShardEcho has the node answer echo requests from outside to its shard's addresses, so that an operator sees whether they arrive.
	ShardEcho bool
	// ShardPorts are the source ports of translated shard connections; the zero value leaves the choice to the kernel.
	ShardPorts PortRange
	// Tenants say behind which interfaces shard sources may have equal addresses.
	Tenants Tenants
	// VouchedOnly has backends on other nodes, which this node translates to under externalTrafficPolicy Cluster, count only when the agent
	// of their node vouches for them on the Service; otherwise EndpointSlices are believed.
	VouchedOnly bool
	// AgentNodes selects the Nodes that run the agent; nil is all of them.
	AgentNodes labels.Selector
	// Reserved addresses are never captured: those of the API server (R7).
	Reserved []netip.Addr
}

// DefaultProxyNames delegates to natplane and, as a drop-in, what was delegated to cozy-proxy.
func DefaultProxyNames() []string { return []string{defaultProxyCozy, defaultProxyNatplane} }

// DefaultShardCIDRs are the private ranges of RFC 1918, RFC 6598 (100.64.0.0/10) and RFC 4193 (ULA).
func DefaultShardCIDRs() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("100.64.0.0/10"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
	}
}

// Validate names every field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("node name is empty: give --node-name the name of this machine's Node object"))
	}
	if len(c.ProxyNames) == 0 {
		errs = append(errs, errors.New("no proxy name: without one no Service is delegated"))
	}
	for _, name := range c.ProxyNames {
		if name == "" {
			errs = append(errs, errors.New("empty proxy name: it would select Services without a delegation"))
		}
	}
	// A list, not a map: the same mistake gives the same text every time.
	for _, field := range []struct {
		flag     string
		prefixes []netip.Prefix
	}{
		{"cluster-cidr", c.ClusterCIDRs}, {"public-cidr", c.PublicCIDRs},
		{"masquerade-source-cidr", c.MasqueradeCIDRs}, {"shard-source-cidr", c.ShardCIDRs},
	} {
		for _, p := range field.prefixes {
			if !p.IsValid() || p.Addr().Is4In6() {
				errs = append(errs, fmt.Errorf("--%s %v is not an IPv4 or IPv6 prefix", field.flag, p))
			}
		}
	}
	switch c.ShardRole {
	case "", ShardAuto, ShardOn, ShardOff:
	default:
		errs = append(errs, fmt.Errorf("--shard %q: want auto, on or off", c.ShardRole))
	}
	if err := c.ShardPorts.validate(); err != nil {
		errs = append(errs, fmt.Errorf("--shard-ports: %w", err))
	}
	if err := c.Tenants.validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// PortRange is an inclusive range of ports; the zero value is no range.
type PortRange struct {
	From, To uint16
}

// IsZero reports whether there is no range.
func (r PortRange) IsZero() bool { return r == PortRange{} }

// Count is the number of ports.
func (r PortRange) Count() int { return int(r.To) - int(r.From) + 1 }

// String is "LO-HI".
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.From, r.To) }

func (r PortRange) validate() error {
	if !r.IsZero() && (r.From == 0 || r.To < r.From) {
		return fmt.Errorf("%s is no range of ports", r)
	}
	return nil
}

// ParsePortRange reads "LO-HI".
func ParsePortRange(s string) (PortRange, error) {
	low, high, ok := strings.Cut(s, "-")
	from, fromErr := strconv.ParseUint(low, 10, 16)
	to, toErr := strconv.ParseUint(high, 10, 16)
	r := PortRange{uint16(from), uint16(to)}
	if !ok || fromErr != nil || toErr != nil || r.IsZero() || r.validate() != nil {
		return PortRange{}, fmt.Errorf("%q is no range of ports, such as 1024-65535", s)
	}
	return r, nil
}
