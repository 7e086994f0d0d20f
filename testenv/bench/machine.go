// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/node"
)

// describeMachine says what the numbers are about. The load tells whether anything else was running.
func describeMachine(context.Context, settings) ([]*table, error) {
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("sysinfo: %w", err)
	}
	release, _, _ := strings.Cut(node.KernelRelease(), "-")
	t := newTable("", "processor", "processors in use", "memory", "kernel", "Go", "load before", "date")
	t.add(processor(), fmt.Sprint(runtime.NumCPU()),
		fmt.Sprintf("%d GiB", (info.Totalram*uint64(info.Unit)+1<<29)>>30), release, strings.TrimPrefix(runtime.Version(), "go"),
		fmt.Sprintf("%.1f", float64(info.Loads[0])/(1<<unix.SI_LOAD_SHIFT)), time.Now().Format(time.DateOnly))
	return []*table{t}, nil
}

// processor is the name in /proc/cpuinfo, or the architecture where that has none.
func processor() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}
