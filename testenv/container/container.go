// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

// Container is one that was started.
type Container struct {
	cmd     *exec.Cmd
	pidFile string
	output  testenv.Output
	done    chan struct{}
}

// Output is what it wrote so far, to either of its outputs.
func (c *Container) Output() string {
	return c.output.String()
}

// Signal sends a signal to the process, as a kubelet does that ends a Pod.
func (c *Container) Signal(signal unix.Signal) error {
	pid, err := c.pid()
	if err != nil {
		return err
	}
	return unix.Kill(pid, signal)
}

// Wait returns the exit code, or an error after a while.
func (c *Container) Wait(limit time.Duration) (int, error) {
	select {
	case <-c.done:
		return c.cmd.ProcessState.ExitCode(), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("still running after %s:\n%s", limit, c.Output())
	}
}

// kill ends it whatever it does.
func (c *Container) kill() error {
	select {
	case <-c.done:
		return nil
	default:
	}
	err := c.Signal(unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		err = nil // it ended meanwhile
	}
	<-c.done
	return err
}

// Status is one line of /proc/PID/status, see proc_pid_status(5).
func (c *Container) Status(name string) (string, error) {
	text, err := c.proc("status")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(line, ":"); key == name {
			return strings.Join(strings.Fields(value), " "), nil
		}
	}
	return "", fmt.Errorf("the kernel tells no %s of processes", name)
}

// MountOptions are those of a mount that the process sees, see proc_pid_mountinfo(5).
func (c *Container) MountOptions(at string) (string, error) {
	text, err := c.proc("mountinfo")
	if err != nil {
		return "", err
	}
	options := ""
	for line := range strings.Lines(text) {
		// Number, parent, device, root, mount point, options. The last one on a point is what is seen there.
		if f := strings.Fields(line); len(f) > 5 && f[4] == at {
			options = f[5]
		}
	}
	return options, nil
}

// NetNS is the identity of the network that the process is in.
func (c *Container) NetNS() (string, error) {
	pid, err := c.pid()
	if err != nil {
		return "", err
	}
	return os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
}

func (c *Container) proc(file string) (string, error) {
	pid, err := c.pid()
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
	return string(text), err
}
