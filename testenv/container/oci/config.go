// SPDX-License-Identifier: Apache-2.0

// Package oci has the part of a bundle's config.json that is used here: https://github.com/opencontainers/runtime-spec/blob/main/config.md
package oci

// Version is that of the specification, which every runtime since 2020 takes.
const Version = "1.0.2"

// ConfigFile is its name in the bundle.
const ConfigFile = "config.json"

// Config describes a container.
type Config struct {
	Version string  `json:"ociVersion"`
	Process Process `json:"process"`
	Root    Root    `json:"root"`
	Mounts  []Mount `json:"mounts"`
	Linux   Linux   `json:"linux"`
}

// Process is what runs in it.
type Process struct {
	User            User         `json:"user"`
	Args            []string     `json:"args"`
	Env             []string     `json:"env"`
	Cwd             string       `json:"cwd"`
	Capabilities    Capabilities `json:"capabilities"`
	NoNewPrivileges bool         `json:"noNewPrivileges"`
}

// User is who runs it.
type User struct {
	UID int64 `json:"uid"`
	GID int64 `json:"gid"`
}

// Capabilities are names like CAP_NET_ADMIN.
type Capabilities struct {
	Bounding    []string `json:"bounding"`
	Effective   []string `json:"effective"`
	Permitted   []string `json:"permitted"`
	Inheritable []string `json:"inheritable"`
	Ambient     []string `json:"ambient"`
}

// Root is the file system of the image.
type Root struct {
	Path     string `json:"path"`
	Readonly bool   `json:"readonly"`
}

// Mount has the options of mount(8).
type Mount struct {
	Destination string   `json:"destination"`
	Type        string   `json:"type"`
	Source      string   `json:"source"`
	Options     []string `json:"options"`
}

// Linux is what only Linux has.
type Linux struct {
	Namespaces    []Namespace `json:"namespaces"`
	Seccomp       *Seccomp    `json:"seccomp,omitempty"`
	MaskedPaths   []string    `json:"maskedPaths"`
	ReadonlyPaths []string    `json:"readonlyPaths"`
}

// Namespace is one that the container has for itself; it shares the others with whoever starts it.
type Namespace struct {
	Type string `json:"type"`
}

// Seccomp says which system calls are allowed.
type Seccomp struct {
	DefaultAction   string    `json:"defaultAction"`
	DefaultErrnoRet *uint     `json:"defaultErrnoRet,omitempty"`
	Architectures   []string  `json:"architectures"`
	Syscalls        []Syscall `json:"syscalls"`
}

// Syscall is one rule about system calls.
type Syscall struct {
	Names    []string     `json:"names"`
	Action   string       `json:"action"`
	ErrnoRet *uint        `json:"errnoRet,omitempty"`
	Args     []SyscallArg `json:"args,omitempty"`
}

// SyscallArg compares an argument.
type SyscallArg struct {
	Index    uint   `json:"index"`
	Value    uint64 `json:"value"`
	ValueTwo uint64 `json:"valueTwo"`
	Op       string `json:"op"`
}
