// SPDX-License-Identifier: Apache-2.0

package check

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStopsWhenStdinCloses(t *testing.T) {
	s := start(t, t.TempDir())
	require.NoError(t, s.stdin.Close())
	s.requireExit(t)
}

// TestStopsWhenParentDies starts the server from a shell without a pipe and
// kills the shell. The server holds the shell's stdout open until it ends.
func TestStopsWhenParentDies(t *testing.T) {
	shell := exec.Command("sh", "-c", `"$0" --dir "$1" </dev/null & wait`, binary(t), t.TempDir())
	output, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { output.Close() })
	shell.Stdout, shell.Stderr = w, os.Stderr
	require.NoError(t, shell.Start())
	require.NoError(t, w.Close())
	require.True(t, strings.HasPrefix(readLine(t, output), "ready "))

	require.NoError(t, shell.Process.Kill())
	_ = shell.Wait() // "signal: killed"
	require.NoError(t, output.SetReadDeadline(time.Now().Add(stopLimit)))
	_, err = io.Copy(io.Discard, output)
	require.NoError(t, err, "the server still runs")
}

func TestListensOnLoopbackOnly(t *testing.T) {
	s := start(t, t.TempDir())
	require.Equal(t, []string{"127.0.0.1"}, listeningAddresses(t, s.cmd.Process.Pid))
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--dir", "x", "--controllers", "scheduler"},
		{"--dir", "x", "--max-endpoints-per-slice", "0"},
		{"--dir", "x", "y"},
	} {
		err := exec.Command(binary(t), args...).Run()
		exit := (*exec.ExitError)(nil)
		require.True(t, errors.As(err, &exit), "%v: %v", args, err)
		require.Equal(t, 2, exit.ExitCode(), "%v", args)
	}
}

// TestSaysThatLoopbackIsDown starts in a fresh network namespace, where a test
// easily forgets to bring lo up.
func TestSaysThatLoopbackIsDown(t *testing.T) {
	if os.Geteuid() != 0 && os.Getenv("CI") != "true" {
		t.Skip("a network namespace needs root")
	}
	cmd := exec.Command(binary(t), "--dir", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	output, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "is interface lo up?")
}

// listeningAddresses lists the local addresses of a process's listening TCP
// sockets; an IPv6 one is returned in the kernel's hexadecimal form.
func listeningAddresses(t *testing.T, pid int) []string {
	t.Helper()
	sockets := socketInodes(t, pid)
	var found []string
	for _, table := range []string{"tcp", "tcp6"} {
		content, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		require.NoError(t, err)
		for _, line := range strings.Split(string(content), "\n")[1:] {
			// Columns of proc(5): local address 1, state 3 (0A is LISTEN), inode 9.
			field := strings.Fields(line)
			if len(field) < 10 || field[3] != "0A" || !sockets[field[9]] {
				continue
			}
			address, _, _ := strings.Cut(field[1], ":")
			if address == "0100007F" {
				address = "127.0.0.1"
			}
			found = append(found, address)
		}
	}
	return found
}

func socketInodes(t *testing.T, pid int) map[string]bool {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	inodes := map[string]bool{}
	for _, entry := range entries {
		link, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil {
			continue // closed since the directory was read
		}
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	return inodes
}
