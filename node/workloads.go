// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// workloads counts the backends behind each interface.
type workloads struct {
	mu sync.Mutex
	// index is the interface of each backend; 0 when there is no way to it.
	index map[netip.Addr]int
	count map[int]int
}

func newWorkloads() *workloads {
	return &workloads{index: map[netip.Addr]int{}, count: map[int]int{}}
}

func (w *workloads) set(backend netip.Addr, index int) {
	w.drop(backend)
	w.index[backend] = index
	if index != 0 {
		w.count[index]++
	}
}

func (w *workloads) drop(backend netip.Addr) {
	old, known := w.index[backend]
	if !known {
		return
	}
	delete(w.index, backend)
	if old == 0 {
		return
	}
	if w.count[old]--; w.count[old] == 0 {
		delete(w.count, old)
	}
}

// TrackBackends adds and removes local backends and returns the interfaces behind which all those tracked are routed. Only added
// ones cost a look-up, also when they are tracked already; Run looks again at all of them when routes change. A backend without a
// route has no interface. One that could not be looked up keeps what was known, is part of the error, and is tried again by Run.
func (n *Node) TrackBackends(add, remove []netip.Addr) ([]string, error) {
	w := n.work
	w.mu.Lock()
	for _, backend := range remove {
		w.drop(backend)
	}
	for _, backend := range add {
		if _, known := w.index[backend]; !known {
			w.set(backend, 0)
		}
	}
	w.mu.Unlock()
	err := n.lookUp(add)
	if err != nil {
		select {
		case n.again <- struct{}{}:
		default:
		}
	}
	interfaces := n.WorkloadInterfaces()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told.workloads = interfaces
	return interfaces, err
}

// WorkloadInterfaces are the interfaces behind which the tracked backends are routed and which are no uplinks, sorted.
func (n *Node) WorkloadInterfaces() []string {
	uplinks := n.Facts().Uplinks
	n.work.mu.Lock()
	indexes := slices.Collect(maps.Keys(n.work.count))
	n.work.mu.Unlock()
	var interfaces []string
	for _, index := range indexes {
		name, err := n.names.of(index)
		if err != nil || name == loopback {
			// Gone since: its backends are looked up again when the event arrives.
			continue
		}
		if _, isUplink := slices.BinarySearch(uplinks, name); !isUplink {
			interfaces = append(interfaces, name)
		}
	}
	slices.Sort(interfaces)
	return slices.Compact(interfaces)
}

// lookUp asks the kernel for the way to each of the backends that are still tracked by the time the answer is there.
func (n *Node) lookUp(backends []netip.Addr) error {
	var errs []error
	for _, backend := range backends {
		index, err := n.routeTo(backend)
		if err != nil && len(errs) < maxErrors {
			errs = append(errs, fmt.Errorf("route to %s: %w", backend, err))
		}
		n.work.mu.Lock()
		if _, tracked := n.work.index[backend]; tracked && err == nil {
			n.work.set(backend, index)
		}
		n.work.mu.Unlock()
	}
	return errors.Join(errs...)
}

// maxErrors bounds what one pass reports: when the kernel refuses, it refuses thousands alike.
const maxErrors = 5

// lookUpAll looks at every tracked backend again.
func (n *Node) lookUpAll() error {
	n.work.mu.Lock()
	backends := slices.Collect(maps.Keys(n.work.index))
	n.work.mu.Unlock()
	return n.lookUp(backends)
}

// routeTo returns the index of the interface towards a backend, 0 when there is none. It is the way that packets take from here;
// those that come from the backend arrive on the same interface unless routing is asymmetric.
func (n *Node) routeTo(backend netip.Addr) (int, error) {
	if !backend.IsValid() {
		return 0, nil
	}
	routes, err := n.route.RouteGetWithOptions(backend.AsSlice(), nil)
	if isNoRoute(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, r := range routes {
		// An own address is "local", on the loopback.
		if r.Type == unix.RTN_UNICAST && r.LinkIndex > 0 {
			return r.LinkIndex, nil
		}
	}
	return 0, nil
}

// isNoRoute knows the answers of the kernel for no route, for unreachable (EHOSTUNREACH), prohibit (EACCES) and blackhole (EINVAL)
// routes, and for a family that it does not have.
func isNoRoute(err error) bool {
	for _, no := range []error{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL, unix.EAFNOSUPPORT, unix.EOPNOTSUPP} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
