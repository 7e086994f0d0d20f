// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	typedrbacv1 "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// readyLimit bounds the start of the server; two seconds are usual.
const readyLimit = 2 * time.Minute

// stderrName is a file of the server's directory.
const stderrName = "stderr.log"

// Cluster is a running API server and an administrator's clients.
type Cluster struct {
	// Config has all rights.
	Config    *rest.Config
	Core      typedcorev1.CoreV1Interface
	Discovery typeddiscoveryv1.DiscoveryV1Interface
	Rbac      typedrbacv1.RbacV1Interface
	Dynamic   dynamic.Interface

	binary string
	dir    string
	args   []string
	server *process
}

// process is one run of the server. It ends with its standard input, so none outlives the test.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

// Start runs an API server until the test ends.
func Start(tb testing.TB, args ...string) *Cluster {
	tb.Helper()
	c := &Cluster{binary: binary(tb), dir: tb.TempDir(), args: args}
	tb.Cleanup(func() {
		c.Kill(tb)
		if tb.Failed() {
			c.logTail(tb)
		}
	})
	kubeconfig := c.Resume(tb)
	var err error
	c.Config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(tb, err)
	c.Config.QPS = -1
	c.Core, err = typedcorev1.NewForConfig(c.Config)
	require.NoError(tb, err)
	c.Discovery, err = typeddiscoveryv1.NewForConfig(c.Config)
	require.NoError(tb, err)
	c.Rbac, err = typedrbacv1.NewForConfig(c.Config)
	require.NoError(tb, err)
	c.Dynamic, err = dynamic.NewForConfig(c.Config)
	require.NoError(tb, err)
	return c
}

// Resume starts the server again on the same state and port, and returns the path of its kubeconfig once it is ready.
func (c *Cluster) Resume(tb testing.TB) string {
	tb.Helper()
	cmd := exec.Command(c.binary, append([]string{"--dir", c.dir}, c.args...)...)
	// It chatters when it is killed; only a failed test wants to read that.
	stderr, err := os.OpenFile(filepath.Join(c.dir, stderrName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(tb, err)
	defer stderr.Close()
	cmd.Stderr = stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(tb, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(tb, err)
	require.NoError(tb, cmd.Start())
	c.server = &process{cmd: cmd, stdin: stdin}
	line := firstLine(tb, stdout)
	fields := strings.Fields(line)
	require.Len(tb, fields, 3, "ready line of the API server: %q", line)
	require.Equal(tb, "ready", fields[0])
	return fields[2]
}

// Kill ends the server at once, as a crash does.
func (c *Cluster) Kill(tb testing.TB) {
	tb.Helper()
	if c.server == nil {
		return
	}
	require.NoError(tb, c.server.cmd.Process.Kill())
	_ = c.server.cmd.Wait() // "signal: killed"
	c.server = nil
}

// logTail shows the last words of the server.
func (c *Cluster) logTail(tb testing.TB) {
	tb.Helper()
	const tail = 4000
	for _, name := range []string{stderrName, "kube-apiserver.log"} {
		if text, err := os.ReadFile(filepath.Join(c.dir, name)); err == nil {
			tb.Logf("end of the API server's %s:\n%s", name, text[max(0, len(text)-tail):])
		}
	}
}

// binary builds the server, or finds it in the cache.
func binary(tb testing.TB) string {
	tb.Helper()
	_, file, _, ok := runtime.Caller(0)
	require.True(tb, ok)
	cmd := exec.Command("go", "run", "./build")
	cmd.Dir = filepath.Join(filepath.Dir(file), "..", "apiserver")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(tb, err, "building the API server")
	return strings.TrimSpace(string(out))
}

func firstLine(tb testing.TB, r io.Reader) string {
	tb.Helper()
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		lines <- strings.TrimSpace(line)
	}()
	select {
	case line := <-lines:
		return line
	case <-time.After(readyLimit):
		require.FailNow(tb, "the API server did not become ready")
		return ""
	}
}
