// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const sysctlRoot = "/proc/sys"

type sysctl struct{ path, value string }

// Sysctl sets a kernel parameter of the namespace. The path is relative to
// /proc/sys, for instance "net/ipv4/ip_forward".
func (ns *NetNS) Sysctl(path, value string) error {
	return ns.setAll([]sysctl{{path, value}})
}

func (ns *NetNS) setAll(list []sysctl) error {
	return ns.Do(func() error {
		for _, set := range list {
			if err := os.WriteFile(filepath.Join(sysctlRoot, set.path), []byte(set.value), 0); err != nil {
				return fmt.Errorf("set sysctl in namespace %s: %w", ns.name, err)
			}
		}
		return nil
	})
}

// ReadSysctl returns a kernel parameter of the namespace.
func (ns *NetNS) ReadSysctl(path string) (string, error) {
	var value string
	err := ns.Do(func() error {
		data, err := os.ReadFile(filepath.Join(sysctlRoot, path))
		if err != nil {
			return fmt.Errorf("read sysctl in namespace %s: %w", ns.name, err)
		}
		value = strings.TrimSpace(string(data))
		return nil
	})
	return value, err
}

// quietIPv6 makes addresses usable as soon as they are set, and keeps the
// captures free of packets that no test sent. The kernel takes the larger of
// "all" and the interface for accept_dad (Documentation/networking/ip-sysctl),
// and interfaces copy "default" when they are made.
func quietIPv6() []sysctl {
	var list []sysctl
	for _, scope := range []string{"all", "default"} {
		dir := "net/ipv6/conf/" + scope + "/"
		list = append(list,
			sysctl{dir + "accept_dad", "0"},
			sysctl{dir + "accept_ra", "0"},
			sysctl{dir + "accept_redirects", "0"},
			sysctl{dir + "router_solicitations", "0"},
		)
	}
	// 1 is "none": link-local addresses are set by hand, at a known time.
	return append(list, sysctl{"net/ipv6/conf/default/addr_gen_mode", "1"})
}
