// SPDX-License-Identifier: Apache-2.0

// Package check proves that testapiserver is a cluster as far as tests need
// one. It runs the binary as any test would and imports nothing of it.
package check

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	readyLimit = 2 * time.Minute
	stopLimit  = 30 * time.Second
	// effectLimit is how long a controller may take for its effect.
	effectLimit = time.Minute
	poll        = 20 * time.Millisecond
)

// server is a running testapiserver.
type server struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	dir    string
	url    string
	client *rest.Config
}

// binary returns the path that the build command prints.
func binary(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("go", "run", "./build")
	cmd.Dir = ".."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// start runs a server on dir, waits for its ready line and ends it with the test.
func start(t *testing.T, dir string, args ...string) *server {
	t.Helper()
	s := &server{dir: dir, cmd: exec.Command(binary(t), append([]string{"--dir", dir}, args...)...)}
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	require.NoError(t, err)
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	require.NoError(t, err)

	began := time.Now()
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			s.kill(t)
		}
		if t.Failed() {
			logTail(t, dir)
		}
	})
	line := readLine(t, stdout)
	word, rest, _ := strings.Cut(line, " ")
	require.Equal(t, "ready", word, line)
	url, kubeconfig, _ := strings.Cut(rest, " ")
	s.url = url
	s.client, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	s.client.QPS = -1
	t.Logf("ready after %s", time.Since(began).Round(10*time.Millisecond))
	return s
}

// kill ends the server without a chance to tidy up.
func (s *server) kill(t *testing.T) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Kill())
	_ = s.cmd.Wait() // "signal: killed"
}

// terminate asks the server to stop and requires exit code 0.
func (s *server) terminate(t *testing.T) {
	t.Helper()
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	s.requireExit(t)
}

func (s *server) requireExit(t *testing.T) {
	t.Helper()
	began := time.Now()
	exited := make(chan error, 1)
	go func() { exited <- s.cmd.Wait() }()
	select {
	case err := <-exited:
		require.NoError(t, err)
		t.Logf("stopped after %s", time.Since(began).Round(10*time.Millisecond))
	case <-time.After(stopLimit):
		require.FailNow(t, "server did not stop")
	}
}

// readLine returns the first line; an empty one when r ended before.
func readLine(t *testing.T, r io.Reader) string {
	t.Helper()
	lines := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(r).ReadString('\n')
		lines <- strings.TrimSpace(line)
	}()
	select {
	case line := <-lines:
		return line
	case <-time.After(readyLimit):
		require.FailNow(t, "no ready line")
		return ""
	}
}

func logTail(t *testing.T, dir string) {
	t.Helper()
	const tail = 4000
	content, err := os.ReadFile(filepath.Join(dir, "kube-apiserver.log"))
	if err != nil {
		t.Logf("server log: %v", err)
		return
	}
	t.Logf("server log, last lines:\n%s", content[max(0, len(content)-tail):])
}
