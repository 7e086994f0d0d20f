// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"net/netip"
	"slices"
	"strings"
)

type set[T comparable] map[T]struct{}

func (s set[T]) add(values ...T) {
	for _, v := range values {
		s[v] = struct{}{}
	}
}

// index finds the objects that mention a value. Lists are short, so they are plain slices.
type index[T comparable] map[T][]Key

// move replaces what an object mentions.
func (x index[T]) move(key Key, from, to []T) {
	for _, v := range from {
		rest := slices.DeleteFunc(x[v], func(k Key) bool { return k == key })
		if len(rest) == 0 {
			delete(x, v)
		} else {
			x[v] = rest
		}
	}
	for _, v := range to {
		if !slices.Contains(x[v], key) {
			x[v] = append(x[v], key)
		}
	}
}

// namespaced is an address as the Pods of one namespace may have it.
type namespaced struct {
	namespace string
	addr      netip.Addr
}

// podIndex knows which addresses the living Pods of this node vouch for.
type podIndex struct {
	addresses map[Key][]netip.Addr
	byName    map[namespaced]int
	byAddr    map[netip.Addr]int
}

func newPodIndex() podIndex {
	return podIndex{addresses: map[Key][]netip.Addr{}, byName: map[namespaced]int{}, byAddr: map[netip.Addr]int{}}
}

// put replaces the addresses of a Pod and returns those that changed.
func (x podIndex) put(pod Key, after []netip.Addr) []netip.Addr {
	before := x.addresses[pod]
	if slices.Equal(before, after) {
		return nil
	}
	for _, a := range before {
		count(x.byName, namespaced{pod.Namespace, a}, -1)
		count(x.byAddr, a, -1)
	}
	for _, a := range after {
		count(x.byName, namespaced{pod.Namespace, a}, 1)
		count(x.byAddr, a, 1)
	}
	if len(after) == 0 {
		delete(x.addresses, pod)
	} else {
		x.addresses[pod] = after
	}
	return sortAddrs(slices.Concat(before, after))
}

func (x podIndex) vouches(namespace string, a netip.Addr) bool {
	return x.byName[namespaced{namespace, a}] > 0
}

func (x podIndex) known(a netip.Addr) bool { return x.byAddr[a] > 0 }

func count[T comparable](m map[T]int, key T, by int) {
	if m[key] += by; m[key] == 0 {
		delete(m, key)
	}
}

// sliceIndex keeps EndpointSlices by Service, and by the addresses that they list on this node.
type sliceIndex struct {
	node      string
	slices    map[Key]*endpointSlice
	byService map[Key][]*endpointSlice // sorted by name
	byAddr    map[namespaced][]Key     // slices
}

func newSliceIndex(node string) sliceIndex {
	return sliceIndex{
		node: node, slices: map[Key]*endpointSlice{}, byService: map[Key][]*endpointSlice{}, byAddr: map[namespaced][]Key{},
	}
}

// put replaces a slice and returns the Services that it belonged to and belongs to, if anything changed.
func (x sliceIndex) put(key Key, after *endpointSlice) []Key {
	before := x.slices[key]
	if before.equal(after) {
		return nil
	}
	var touched []Key
	index[namespaced](x.byAddr).move(key, x.local(before), x.local(after))
	if before != nil {
		rest := slices.DeleteFunc(x.byService[before.service], func(s *endpointSlice) bool { return s.key == key })
		if len(rest) == 0 {
			delete(x.byService, before.service)
		} else {
			x.byService[before.service] = rest
		}
		delete(x.slices, key)
		touched = append(touched, before.service)
	}
	if after != nil {
		list := x.byService[after.service]
		at, _ := slices.BinarySearchFunc(list, after, func(a, b *endpointSlice) int { return strings.Compare(a.key.Name, b.key.Name) })
		x.byService[after.service] = slices.Insert(list, at, after)
		x.slices[key] = after
		touched = append(touched, after.service)
	}
	return touched
}

// local lists the addresses of a slice for which a Pod of this node has to vouch.
func (x sliceIndex) local(s *endpointSlice) []namespaced {
	if s == nil {
		return nil
	}
	var list []namespaced
	for _, e := range s.endpoints {
		if e.node == x.node {
			list = append(list, namespaced{s.key.Namespace, e.addr})
		}
	}
	return list
}

func (x sliceIndex) of(service Key) []*endpointSlice { return x.byService[service] }

// listing returns the Services whose slices list an address on this node.
func (x sliceIndex) listing(namespace string, a netip.Addr) []Key {
	var services []Key
	for _, key := range x.byAddr[namespaced{namespace, a}] {
		services = append(services, x.slices[key].service)
	}
	return services
}
