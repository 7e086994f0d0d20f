// SPDX-License-Identifier: Apache-2.0

package container

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"

	"github.com/natplane/natplane/testenv/container/oci"
)

// ProfileFile is the default profile of the container tools, installed with buildah: what stands in for RuntimeDefault here. Those of other
// runtimes have the same origin and differ in few calls.
const ProfileFile = "/usr/share/containers/seccomp.json"

// profile is the format that the tools share: rules that hold for some architectures or capabilities only.
type profile struct {
	DefaultAction   string `json:"defaultAction"`
	DefaultErrnoRet *uint  `json:"defaultErrnoRet"`
	ArchMap         []struct {
		Architecture     string   `json:"architecture"`
		SubArchitectures []string `json:"subArchitectures"`
	} `json:"archMap"`
	Syscalls []struct {
		oci.Syscall
		Includes condition `json:"includes"`
		Excludes condition `json:"excludes"`
	} `json:"syscalls"`
}

type condition struct {
	Arches []string `json:"arches"`
	Caps   []string `json:"caps"`
}

// seccompNames are architectures as the profiles call them.
func seccompName(arch string) (string, error) {
	switch arch {
	case "amd64":
		return "SCMP_ARCH_X86_64", nil
	case "arm64":
		return "SCMP_ARCH_AARCH64", nil
	}
	return "", fmt.Errorf("the seccomp name of architecture %s is not known here", arch)
}

// defaultSeccomp is the default profile for a process with these capabilities on this machine.
func defaultSeccomp(capabilities []string) (*oci.Seccomp, error) {
	text, err := os.ReadFile(ProfileFile)
	if err != nil {
		return nil, fmt.Errorf("default seccomp profile: %w", err)
	}
	var p profile
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("default seccomp profile %s: %w", ProfileFile, err)
	}
	arch, err := seccompName(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	filter := &oci.Seccomp{DefaultAction: p.DefaultAction, DefaultErrnoRet: p.DefaultErrnoRet, Architectures: []string{arch}}
	for _, a := range p.ArchMap {
		if a.Architecture == arch {
			filter.Architectures = append(filter.Architectures, a.SubArchitectures...)
		}
	}
	for _, s := range p.Syscalls {
		if s.Includes.hold(capabilities) && !s.Excludes.any(capabilities) {
			filter.Syscalls = append(filter.Syscalls, s.Syscall)
		}
	}
	return filter, nil
}

// hold: a rule for some architectures is for this one if it is among them, and one for capabilities needs them all.
func (c condition) hold(capabilities []string) bool {
	missing := func(name string) bool { return !slices.Contains(capabilities, name) }
	return (len(c.Arches) == 0 || slices.Contains(c.Arches, runtime.GOARCH)) && !slices.ContainsFunc(c.Caps, missing)
}

// any: a rule is left out if one of its exceptions applies.
func (c condition) any(capabilities []string) bool {
	has := func(name string) bool { return slices.Contains(capabilities, name) }
	return slices.Contains(c.Arches, runtime.GOARCH) || slices.ContainsFunc(c.Caps, has)
}
