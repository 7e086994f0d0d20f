// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Key names a namespaced object; its String is "namespace/name".
type Key = types.NamespacedName

// Protocol is the IP protocol number of a protocol with ports.
type Protocol uint8

// The protocols that a PortList Service can forward.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the name that Kubernetes and nft users know: TCP, UDP or SCTP.
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown"
}

// Range is an inclusive range of addresses of one family.
type Range struct {
	From, To netip.Addr
}

// Sources says which clients may open connections. The zero value admits everybody.
type Sources struct {
	// Restricted is true when only Allowed may connect; with no Allowed ranges nobody may.
	Restricted bool
	// Allowed is sorted, merged (no two ranges overlap or touch) and of the family of the address that it guards.
	Allowed []Range
}

// Equal reports whether both admit the same clients.
func (s Sources) Equal(o Sources) bool {
	return s.Restricted == o.Restricted && slices.Equal(s.Allowed, o.Allowed)
}

// Forward sends what arrives at a public address to a backend. The zero value forwards nothing.
type Forward struct {
	Backend netip.Addr
	Owner   Key
	Sources Sources
}

// Active reports whether there is a backend to forward to.
func (f Forward) Active() bool { return f.Backend.IsValid() }

// Equal reports whether both forward the same clients to the same backend for the same Service.
func (f Forward) Equal(o Forward) bool {
	return f.Backend == o.Backend && f.Owner == o.Owner && f.Sources.Equal(o.Sources)
}

// Port forwards one (protocol, port) of a public address to a backend's port.
type Port struct {
	Protocol Protocol
	Port     uint16
	Target   netip.AddrPort
	Owner    Key
	Sources  Sources
}

// Equal reports whether both are the same in every field.
func (p Port) Equal(o Port) bool {
	return p.Protocol == o.Protocol && p.Port == o.Port && p.Target == o.Target && p.Owner == o.Owner && p.Sources.Equal(o.Sources)
}

// Address is what this node does for one delegated public address of the cluster. Records are immutable once made.
type Address struct {
	Public netip.Addr
	// Owner is the oldest Service that claims the address or a port of it.
	Owner Key
	// Hosted is true when a backend of the address is on this node: what is not translated is dropped whatever its source (R12).
	Hosted bool
	// Elsewhere is true when the address is translated here although no backend of it is on this node
	// (externalTrafficPolicy: Cluster). Only what arrives on an uplink is translated then, and masqueraded (R5).
	Elsewhere bool
	// Whole forwards every protocol and port (WholeIP); never set together with Echo or Ports.
	Whole Forward
	// Echo forwards ICMP echo requests (PortList with allowICMP).
	Echo Forward
	// Ports is the PortList, sorted by protocol and port.
	Ports []Port
	// Attached lists the local backends that own the address or part of it, sorted: a connection that left with the address
	// stays valid while its backend is attached, also when another address became the primary (R8).
	Attached []netip.Addr
}

// Equal reports whether both records ask the same of the kernel and of the flow audit.
func (a Address) Equal(o Address) bool {
	return a.Public == o.Public && a.Owner == o.Owner && a.Hosted == o.Hosted && a.Elsewhere == o.Elsewhere &&
		a.Whole.Equal(o.Whole) && a.Echo.Equal(o.Echo) &&
		slices.EqualFunc(a.Ports, o.Ports, Port.Equal) && slices.Equal(a.Attached, o.Attached)
}

// Backend is a workload on this node that at least one public address stands for, here or, outranked, on another node. Records are immutable
// once made.
type Backend struct {
	Addr netip.Addr
	// Owner is the oldest Service attached to the backend.
	Owner Key
	// Primary is the public address that the backend's own connections leave with; invalid when no Service may lend one (R8), and on a node
	// where the backend is outranked (R4).
	Primary netip.Addr
	// PrimaryOwner is the Service that Primary comes from.
	PrimaryOwner Key
}

// NamedRange is a range together with the reason why it is there, shown as the comment of its element.
type NamedRange struct {
	Range
	Reason string
}

// Shard is the EgressShard that this node serves, as far as it has addresses.
type Shard struct {
	Owner Key
	// IPv4 and IPv6 are invalid while the shard does not translate that family.
	IPv4, IPv6 netip.Addr
	// Echo has the node itself answer echo requests that arrive at these addresses on an uplink.
	Echo bool
}

// OwnedAddress is an address with the object that it belongs to.
type OwnedAddress struct {
	Addr  netip.Addr
	Owner Key
}

// Host is what holds for the node as a whole. Records are immutable once made.
type Host struct {
	// Cluster holds the cluster ranges (R9), both families, sorted, not overlapping within a family.
	Cluster []NamedRange
	// Masquerade holds the sources whose connections to public addresses are masqueraded (R10): all node addresses and
	// --masquerade-source-cidr, sorted, not overlapping.
	Masquerade []NamedRange
	// IPv4 and IPv6 are this node's own addresses, as its Node object and its interfaces agree: what is masqueraded comes from
	// them. Invalid, the kernel chooses.
	IPv4, IPv6 netip.Addr
	// Uplinks are the interfaces that lead to the outside, sorted.
	Uplinks []string
	// Workloads are the interfaces behind which local backends are routed, without the uplinks, sorted.
	Workloads []string
	// ShardSources are the private ranges that a shard translates or, without an address, keeps in (R19); empty when the node has no
	// shard role.
	ShardSources []NamedRange
	// Shard is the zero value when the node serves none.
	Shard Shard
	// IdleShards are the addresses of EgressShards that are not translated here, those of other nodes for one, sorted. What arrives for them
	// on an uplink would go back to the router (R12).
	IdleShards []OwnedAddress
	// Tenants are the interfaces behind which shard sources may have equal addresses, sorted.
	Tenants []Tenant
	// TenantTables are the routing tables, and with them the zones, of all tenants, sorted.
	TenantTables []uint16
}

// Equal reports whether both ask the same of the kernel.
func (h Host) Equal(o Host) bool {
	return h.IPv4 == o.IPv4 && h.IPv6 == o.IPv6 && slices.Equal(h.Cluster, o.Cluster) && slices.Equal(h.Masquerade, o.Masquerade) &&
		slices.Equal(h.Uplinks, o.Uplinks) && slices.Equal(h.Workloads, o.Workloads) &&
		slices.Equal(h.ShardSources, o.ShardSources) && h.Shard == o.Shard &&
		slices.Equal(h.IdleShards, o.IdleShards) && slices.Equal(h.Tenants, o.Tenants) &&
		slices.Equal(h.TenantTables, o.TenantTables)
}

// State is everything that the kernel of this node has to hold: a value, sorted, equal for equal objects in any order.
type State struct {
	// Addresses is sorted by Public.
	Addresses []Address
	// Backends is sorted by Addr.
	Backends []Backend
	Host     Host
}

// Equal reports whether two states are the same.
func (s State) Equal(o State) bool {
	return slices.EqualFunc(s.Addresses, o.Addresses, Address.Equal) && slices.Equal(s.Backends, o.Backends) && s.Host.Equal(o.Host)
}

// Change is a record before and after. Old is nil for a new record, New for one that is gone.
type Change[T any] struct {
	Old, New *T
}

// Delta is the difference between two states, record by record, sorted by address. It grows with what changed, not with the state.
type Delta struct {
	Addresses []Change[Address]
	Backends  []Change[Backend]
	// Host is nil when nothing about the node as a whole changed.
	Host *Change[Host]
}

// Empty reports whether nothing changed.
func (d Delta) Empty() bool { return len(d.Addresses) == 0 && len(d.Backends) == 0 && d.Host == nil }
