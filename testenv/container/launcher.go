// SPDX-License-Identifier: Apache-2.0

package container

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/container/oci"
)

// tryLimit is how long Try may take; a tenth of a second is usual.
const tryLimit = 10 * time.Second

// Launcher starts containers in one of two ways.
type Launcher struct {
	name string
	// Seccomp says whether containers run under the seccomp profile.
	Seccomp bool
	// command runs the bundle in a directory and ends with its process, with its exit code. pidFile is where it says which one that is;
	// without the file it is the command itself.
	command func(bundle, pidFile string) *exec.Cmd
}

// String is its name.
func (l Launcher) String() string { return l.name }

// privateMounts runs crun where /sys/fs/cgroup is a plain cgroup2: it wants none of the controllers, but refuses to look at a machine that
// has both versions of cgroups. The mount is seen by nobody else.
const privateMounts = `mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec crun "$@"`

// Crun is the OCI runtime crun without cgroups: their limits are no part of the security context, and a test does not meddle with the
// machine's.
func Crun(tb testing.TB) Launcher {
	tb.Helper()
	testenv.RequireTool(tb, "crun")
	state := tb.TempDir()
	command := func(bundle, pidFile string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", privateMounts, "crun", "--root", state, "--cgroup-manager=disabled",
			"run", "--bundle", bundle, "--pid-file", pidFile, filepath.Base(filepath.Dir(bundle))+"-"+filepath.Base(bundle))
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		return cmd
	}
	return Launcher{"crun", true, command}
}

// Bare is the program enter of this package: no runtime, no seccomp profile.
func Bare(tb testing.TB) Launcher {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "enter")
	out, err := exec.Command("go", "build", "-o", path, "github.com/natplane/natplane/testenv/container/enter").CombinedOutput()
	require.NoError(tb, err, "%s", out)
	command := func(bundle, _ string) *exec.Cmd {
		cmd := exec.Command(path, bundle)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS}
		return cmd
	}
	return Launcher{"bare", false, command}
}

// Start runs a container in the network of a namespace, as hostNetwork has it. What is left of it ends with the test.
func (l Launcher) Start(tb testing.TB, ns *testenv.NetNS, config oci.Config) *Container {
	tb.Helper()
	if l.Seccomp {
		var err error
		config.Linux.Seccomp, err = defaultSeccomp(config.Process.Capabilities.Effective)
		require.NoError(tb, err)
	}
	bundle := tb.TempDir()
	text, err := json.Marshal(config)
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(filepath.Join(bundle, oci.ConfigFile), text, 0o600))
	pidFile := filepath.Join(bundle, "pid")
	c := &Container{cmd: l.command(bundle, pidFile), pidFile: pidFile, done: make(chan struct{})}
	c.cmd.Stdout, c.cmd.Stderr = &c.output, &c.output
	require.NoError(tb, ns.Start(c.cmd))
	go func() {
		_ = c.cmd.Wait() // the state of the process tells
		close(c.done)
	}()
	tb.Cleanup(func() {
		if err := c.kill(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

// pid is the process of the container as this machine sees it.
func (c *Container) pid() (int, error) {
	text, err := os.ReadFile(c.pidFile)
	if os.IsNotExist(err) {
		return c.cmd.Process.Pid, nil
	}
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("process of the container: %w", err)
	}
	return pid, nil
}

// Try runs the program of an image with `version`, whatever a manifest says: can this launcher work on this machine?
func (l Launcher) Try(tb testing.TB, image *Image) error {
	tb.Helper()
	ns := testenv.NewT(tb, "try")
	netAdmin := []string{"CAP_NET_ADMIN"}
	c := l.Start(tb, ns, oci.Config{
		Version: oci.Version,
		Root:    oci.Root{Path: image.Root, Readonly: true},
		Mounts:  defaultMounts(),
		Process: oci.Process{
			Args: append(image.Config.Entrypoint, "version"), Cwd: "/", NoNewPrivileges: true,
			Capabilities: oci.Capabilities{Bounding: netAdmin, Effective: netAdmin, Permitted: netAdmin},
		},
		Linux: oci.Linux{Namespaces: ownNamespaces()},
	})
	code, err := c.Wait(tryLimit)
	if err == nil && code != 0 {
		err = fmt.Errorf("exit code %d: %s", code, c.Output())
	}
	return err
}
