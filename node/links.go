// SPDX-License-Identifier: Apache-2.0

package node

import (
	"sync"

	"github.com/vishvananda/netlink"
)

// linkNames remembers the names of interfaces until an event says that one may have changed.
type linkNames struct {
	route *netlink.Handle
	mu    sync.Mutex
	names map[int]string
	// age counts what was forgotten: a name that was asked for before must not be remembered after.
	age int
}

func newLinkNames(route *netlink.Handle) *linkNames {
	return &linkNames{route: route, names: map[int]string{}}
}

func (l *linkNames) of(index int) (string, error) {
	l.mu.Lock()
	name, known := l.names[index]
	age := l.age
	l.mu.Unlock()
	if known {
		return name, nil
	}
	link, err := l.route.LinkByIndex(index)
	if err != nil {
		return "", err
	}
	name = link.Attrs().Name
	l.mu.Lock()
	defer l.mu.Unlock()
	if age == l.age {
		l.names[index] = name
	}
	return name, nil
}

func (l *linkNames) forget(index int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.names, index)
	l.age++
}

func (l *linkNames) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.names)
	l.age++
}
