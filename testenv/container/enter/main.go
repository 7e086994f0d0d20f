// SPDX-License-Identifier: Apache-2.0

// Command enter turns itself into the process of a container: it reads a bundle, makes its mounts and its root, drops capabilities and
// executes. Whoever starts it has made the namespaces. It knows no seccomp, no cgroups and no devices.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv/container/oci"
)

// capabilitySetSize is how many capabilities the kernel's sets have room for; it has 41 of them since 5.9.
const capabilitySetSize = 64

func main() {
	runtime.LockOSThread() // capabilities are those of a thread, and the thread that executes passes on its own
	fmt.Fprintln(os.Stderr, "enter:", run())
	os.Exit(125)
}

// run returns only if something failed.
func run() error {
	if len(os.Args) != 2 {
		return errors.New("want the directory of a bundle")
	}
	text, err := os.ReadFile(filepath.Join(os.Args[1], oci.ConfigFile))
	if err != nil {
		return err
	}
	var c oci.Config
	if err := json.Unmarshal(text, &c); err != nil {
		return err
	}
	for _, step := range []func(oci.Config) error{mounts, root, user, capabilities} {
		if err := step(c); err != nil {
			return err
		}
	}
	if err := unix.Exec(c.Process.Args[0], c.Process.Args, c.Process.Env); err != nil {
		return fmt.Errorf("execute %s: %w", c.Process.Args[0], err)
	}
	return nil
}

func mounts(c oci.Config) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("private mounts: %w", err)
	}
	if err := unix.Mount(c.Root.Path, c.Root.Path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("root %s: %w", c.Root.Path, err)
	}
	for _, m := range c.Mounts {
		if err := mount(c.Root.Path, m); err != nil {
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	for _, path := range c.Linux.ReadonlyPaths {
		path = filepath.Join(c.Root.Path, path)
		if err := unix.Mount(path, path, "", unix.MS_BIND, ""); errors.Is(err, unix.ENOENT) {
			continue
		} else if err != nil {
			return fmt.Errorf("read-only %s: %w", path, err)
		}
		if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("read-only %s: %w", path, err)
		}
	}
	return nil
}

func mount(root string, m oci.Mount) error {
	at := filepath.Join(root, m.Destination)
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	var flags uintptr
	var data []string
	for _, o := range m.Options {
		if f, known := mountFlags()[o]; known {
			flags |= f
		} else {
			data = append(data, o)
		}
	}
	if err := unix.Mount(m.Source, at, m.Type, flags, strings.Join(data, ",")); err != nil || flags&unix.MS_BIND == 0 {
		return err
	}
	return unix.Mount("", at, "", flags|unix.MS_REMOUNT, "") // a new bind mount takes no other flags, see mount(2)
}

func mountFlags() map[string]uintptr {
	return map[string]uintptr{
		"bind": unix.MS_BIND, "ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "noexec": unix.MS_NOEXEC, "nodev": unix.MS_NODEV,
	}
}

// root changes to the root of the container and lets go of the old one.
func root(c oci.Config) error {
	if c.Root.Readonly {
		if err := unix.Mount("", c.Root.Path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("read-only root: %w", err)
		}
	}
	if err := unix.Chdir(c.Root.Path); err != nil {
		return err
	}
	// With the same directory twice the old root ends up above the new one, see pivot_root(2).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the old root: %w", err)
	}
	return unix.Chdir(c.Process.Cwd)
}

// user can be root only: other users need ambient capabilities.
func user(c oci.Config) error {
	if c.Process.User != (oci.User{}) {
		return fmt.Errorf("user %+v: only root is known here", c.Process.User)
	}
	return unix.Setgroups(nil)
}

// capabilities limits what root gets at exec, which is the bounding set: see capabilities(7).
func capabilities(c oci.Config) error {
	want := c.Process.Capabilities
	if !slices.Equal(want.Bounding, want.Permitted) || !slices.Equal(want.Bounding, want.Effective) || len(want.Inheritable)+len(want.Ambient) > 0 {
		return fmt.Errorf("capabilities %+v: only equal sets, nothing of them inheritable or ambient, are known here", want)
	}
	keep := map[int]bool{}
	for _, name := range want.Bounding {
		number, known := map[string]int{"CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_NET_RAW": unix.CAP_NET_RAW}[name]
		if !known {
			return fmt.Errorf("capability %s is not known here", name)
		}
		keep[number] = true
	}
	for number := range capabilitySetSize {
		if keep[number] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: no such one
			return fmt.Errorf("drop capability %d: %w", number, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	sets[0].Inheritable, sets[1].Inheritable = 0, 0
	if err := unix.Capset(&header, &sets[0]); err != nil {
		return fmt.Errorf("capabilities: %w", err)
	}
	if !c.Process.NoNewPrivileges {
		return nil
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	return nil
}
