// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// world makes random objects in a universe so small that they collide all the time.
type world struct {
	rng *rand.Rand
	all Objects
	// ambiguous lets a Service have any endpoints; otherwise those that are ready or serving share one address per family.
	ambiguous bool
	// shared lets Services want each other's addresses.
	shared bool
	// vouchedOnly is a setting of the agent.
	vouchedOnly bool
	// shards counts them: each is an object of its own, with a UID of its own, as an address is write-once.
	shards int
}

func newWorld(seed uint64, ambiguous bool) *world {
	return &world{rng: rand.New(rand.NewPCG(seed, 1)), all: NewObjects(), ambiguous: ambiguous, shared: true, vouchedOnly: seed%2 == 0}
}

func (w *world) config() Config {
	c := testConfig("node-b")
	c.ClusterCIDRs = prefixes("10.96.0.0/24")
	c.VouchedOnly = w.vouchedOnly
	c.AgentNodes = labels.SelectorFromSet(labels.Set{"agent": "true"})
	c.Reserved = []netip.Addr{addr("203.0.113.66")}
	c.ShardCIDRs = DefaultShardCIDRs()
	return c
}

var (
	worldServices = []string{"a/s0", "a/s1", "a/s2", "b/s0", "b/s1"}
	worldNodes    = []string{"node-a", "node-b", "node-c"}
)

func oneOf[T any](rng *rand.Rand, list ...T) T { return list[rng.IntN(len(list))] }

func (w *world) chance(n int) bool { return w.rng.IntN(n) == 0 }

// batch changes one to four objects, and remembers what is there.
func (w *world) batch() Objects {
	b := NewObjects()
	for range 1 + w.rng.IntN(4) {
		switch w.rng.IntN(11) {
		case 0, 1, 2:
			w.service(b)
		case 3, 4, 5, 6:
			w.slice(b)
		case 7, 8:
			w.pod(b)
		case 9:
			w.shard(b)
		default:
			w.node(b)
		}
	}
	remember(w.all.Services, b.Services)
	remember(w.all.Slices, b.Slices)
	remember(w.all.Pods, b.Pods)
	remember(w.all.Nodes, b.Nodes)
	remember(w.all.Shards, b.Shards)
	return b
}

func remember[K comparable, V any](all, batch map[K]*V) {
	for k, v := range batch {
		if v == nil {
			delete(all, k)
		} else {
			all[k] = v
		}
	}
}

func (w *world) facts(last Facts) Facts {
	if !w.chance(15) {
		return last
	}
	f := Facts{Uplinks: []string{oneOf(w.rng, "eth0", "eth1")}}
	for range w.rng.IntN(3) {
		f.Addresses = append(f.Addresses, netip.MustParsePrefix(oneOf(w.rng, "203.0.113.1/24", "203.0.113.2/32", "10.0.0.2/16", "2001:db8:f::1/64", "198.51.100.2/24")))
	}
	return f
}

func (w *world) service(b Objects) {
	n := w.rng.IntN(len(worldServices))
	name := worldServices[n]
	if w.chance(5) {
		b.Services[keyOf(name)] = nil
		return
	}
	s := svc(name).age(w.rng.IntN(3))
	if !w.chance(8) || !w.shared {
		for range w.rng.IntN(4) {
			s.ip(w.public(n))
		}
	}
	if w.chance(3) {
		s.whole()
	}
	if w.chance(3) {
		s.icmp()
	}
	if w.chance(3) {
		s.spread()
		for range w.rng.IntN(3) {
			s.vouched(oneOf(w.rng, worldNodes...), backendAddress(1+w.rng.IntN(4), false)+", "+backendAddress(1+w.rng.IntN(4), true))
		}
	}
	if w.chance(4) {
		s.sources(oneOf(w.rng, "0.0.0.0/0", "198.51.100.0/24", "2001:db8:e::/64", "nonsense"), oneOf(w.rng, "198.51.100.128/25", "::/0"))
	}
	if w.chance(10) {
		s.label("other")
	}
	s.primary(oneOf(w.rng, "true", "false", "", "", ""))
	for range w.rng.IntN(5) {
		s.ports(oneOf(w.rng, "80", "80", "http:80", "443", "53/UDP", "53/SCTP", "70000", "x:443"))
	}
	b.Services[keyOf(name)] = s.Service
}

func (w *world) public(n int) string {
	if !w.shared {
		return oneOf(w.rng, fmt.Sprintf("203.0.113.%d", 100+n), fmt.Sprintf("203.0.113.%d", 110+n), fmt.Sprintf("2001:db8:f::%d", 100+n))
	}
	if w.chance(8) {
		return oneOf(w.rng, "10.96.0.1", "10.0.0.1", "198.51.100.1", "203.0.113.66", "bad")
	}
	return oneOf(w.rng, "203.0.113.1", "203.0.113.2", "203.0.113.3", "2001:db8:f::1", "2001:db8:f::2")
}

func (w *world) shard(b Objects) {
	n := w.rng.IntN(3)
	name := fmt.Sprintf("g/e%d", n)
	if w.chance(2) {
		b.Shards[keyOf(name)] = nil
		return
	}
	w.shards++
	s := egressShard(name).age(w.rng.IntN(3)).on(oneOf(w.rng, worldNodes...)).uid(fmt.Sprint(w.shards))
	if w.shared {
		s.Spec.ShardAddressIPv4 = oneOf(w.rng, "203.0.113.1", "203.0.113.2", "203.0.113.200", "198.51.100.1", "")
		s.Spec.ShardAddressIPv6 = oneOf(w.rng, "2001:db8:f::1", "2001:db8:f::200", "bad", "")
	} else {
		s.Spec.ShardAddressIPv4 = fmt.Sprintf("203.0.113.%d", 120+n)
	}
	b.Shards[keyOf(name)] = s.EgressShard
}

// slice lists up to four endpoints of a Service in one family.
func (w *world) slice(b Objects) {
	n := w.rng.IntN(len(worldServices))
	service := worldServices[n]
	v6 := w.chance(3)
	name := fmt.Sprintf("%s-%t-%d", keyOf(service).Name, v6, w.rng.IntN(2))
	key := Key{Namespace: keyOf(service).Namespace, Name: name}
	if w.chance(4) {
		b.Slices[key] = nil
		return
	}
	var ends []string
	for range w.rng.IntN(4) {
		ends = append(ends, w.endpoint(n, v6))
	}
	s := slice(service, name, ends...).family(discoveryv1.AddressTypeIPv4)
	if v6 {
		s.family(discoveryv1.AddressTypeIPv6)
	}
	if w.chance(20) {
		s.family(discoveryv1.AddressTypeFQDN)
	}
	s.serves("80", oneOf(w.rng, "http:8080", "http:8081"), "53/UDP")
	if w.chance(2) {
		s.serves("443", "53/SCTP")
	}
	b.Slices[key] = s.EndpointSlice
}

func (w *world) endpoint(n int, v6 bool) string {
	last := 1 + n%3
	rank := oneOf(w.rng, "", "!ready", "!serving")
	if w.ambiguous {
		last = 1 + w.rng.IntN(4)
		rank = oneOf(w.rng, "", "", "!serving", "!notready")
	}
	if w.chance(10) {
		return oneOf(w.rng, "127.0.0.1", "::1", "nonsense", "0.0.0.0") + "@node-b"
	}
	at := oneOf(w.rng, "@node-a", "@node-b", "@node-b", "@node-b", "@node-c", "")
	return backendAddress(last, v6 != w.chance(12)) + at + rank // sometimes of the other family: refused
}

func backendAddress(last int, v6 bool) string {
	if v6 {
		return fmt.Sprintf("fd00::%d", last)
	}
	return fmt.Sprintf("10.0.0.%d", last)
}

func (w *world) pod(b Objects) {
	last := 1 + w.rng.IntN(4)
	name := fmt.Sprintf("%s/p%d", oneOf(w.rng, "a", "b"), last)
	if w.chance(10) {
		b.Pods[keyOf(name)] = nil
		return
	}
	if w.chance(6) {
		last = 1 + w.rng.IntN(4)
	}
	p := pod(name, backendAddress(last, false), backendAddress(last, true)).on(oneOf(w.rng, "node-b", "node-b", "node-b", "node-a"))
	if w.chance(6) {
		p.phase(oneOf(w.rng, corev1.PodSucceeded, corev1.PodFailed))
	}
	if w.chance(12) {
		p.hostNetwork()
	}
	if w.chance(12) {
		p.Status.PodIPs = nil
	}
	b.Pods[keyOf(name)] = p.Pod
}

func (w *world) node(b Objects) {
	name := oneOf(w.rng, worldNodes...)
	if w.chance(4) {
		b.Nodes[name] = nil
		return
	}
	n := node(name, oneOf(w.rng, "198.51.100.1", "198.51.100.2", "198.51.100.3"))
	if w.chance(8) {
		n = node(name, oneOf(w.rng, "203.0.113.3", "10.0.0.3"))
	}
	if w.chance(6) {
		n.pods(oneOf(w.rng, "10.244.0.0/24", "10.244.1.0/24", "2001:db8:f::2/127", "203.0.113.2/31"))
	}
	if !w.chance(4) {
		n.labelled("agent", "true")
	}
	b.Nodes[name] = n.Node
}

// shuffled returns every object as a batch of its own, in random order.
func (w *world) shuffled() []Objects {
	var list []Objects
	for _, k := range sortedKeys(w.all.Services) {
		list = append(list, Objects{Services: map[Key]*corev1.Service{k: w.all.Services[k]}})
	}
	for _, k := range sortedKeys(w.all.Slices) {
		list = append(list, Objects{Slices: map[Key]*discoveryv1.EndpointSlice{k: w.all.Slices[k]}})
	}
	for _, k := range sortedKeys(w.all.Pods) {
		list = append(list, Objects{Pods: map[Key]*corev1.Pod{k: w.all.Pods[k]}})
	}
	for _, k := range slices.Sorted(maps.Keys(w.all.Nodes)) {
		list = append(list, Objects{Nodes: map[string]*corev1.Node{k: w.all.Nodes[k]}})
	}
	for _, k := range sortedKeys(w.all.Shards) {
		list = append(list, Objects{Shards: map[Key]*EgressShard{k: w.all.Shards[k]}})
	}
	w.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// sortedKeys makes a seed repeat a run: maps come in any order.
func sortedKeys[V any](m map[Key]V) []Key { return slices.SortedFunc(maps.Keys(m), CompareKeys) }
