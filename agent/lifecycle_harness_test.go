// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/testenv"
)

// builtIn is where the binary of the product is; TestMain removes it.
var builtIn string

// product builds the product once for all tests.
var product = sync.OnceValues(func() (string, error) {
	path := filepath.Join(builtIn, "natplane")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/natplane").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "natplane-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	builtIn = dir
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// writing is a log whose lines are counted.
type writing struct{ testenv.Output }

// lines counts the lines that contain a text.
func (w *writing) lines(text string) int {
	n := 0
	for line := range strings.Lines(w.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// logTo has an agent log to w, from Info on.
func logTo(w *writing) func(*agent.Options) {
	return func(o *agent.Options) { o.Log = slog.New(slog.NewTextHandler(w, nil)) }
}

// unowned has an agent work as on kernels before 6.9.
func unowned(o *agent.Options) { o.Unowned = true }

// process is the product as a process of its own on a node.
type process struct {
	t    testing.TB
	node *testenv.Node
	cmd  *exec.Cmd
	log  *writing
	done chan struct{}
	http *http.Client
	port int
}

// launch starts the product on a node with a directory of manifests.
func launch(t testing.TB, node *testenv.Node, dir string, port int, more ...string) *process {
	t.Helper()
	testenv.RequireTool(t, "go")
	path, err := product()
	require.NoError(t, err)
	args := []string{"agent", "--node-name=" + node.Name, "--manifests=" + dir, fmt.Sprintf("--http-address=127.0.0.1:%d", port)}
	for _, c := range clusterCIDRs() {
		args = append(args, "--cluster-cidr="+c.String())
	}
	pr := &process{t: t, node: node, log: &writing{}, done: make(chan struct{}), port: port, http: clientIn(node.NS)}
	pr.cmd = exec.Command(path, append(args, more...)...)
	pr.cmd.Stderr = pr.log
	require.NoError(t, node.NS.Start(pr.cmd))
	go func() {
		_ = pr.cmd.Wait() // by a signal, as the test wants
		close(pr.done)
	}()
	t.Cleanup(func() { pr.end(unix.SIGKILL) })
	return pr
}

// clientIn is an HTTP client inside a namespace.
func clientIn(ns *testenv.NetNS) *http.Client {
	dial := func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		err = ns.Do(func() error {
			conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
			return err
		})
		return conn, err
	}
	return &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}, Timeout: patience}
}

// end sends a signal to the process, which has to end by it.
func (pr *process) end(signal unix.Signal) {
	pr.t.Helper()
	select {
	case <-pr.done:
		return
	default:
	}
	require.NoError(pr.t, pr.cmd.Process.Signal(signal))
	select {
	case <-pr.done:
	case <-time.After(patience):
		_ = pr.cmd.Process.Signal(unix.SIGQUIT) // Go programs say where they are, and end
		<-pr.done
		require.Fail(pr.t, "does not end", "%v\n%s", signal, pr.log)
	}
}

// get asks the process for a path.
func (pr *process) get(path string) (code int, body string, err error) {
	return get(pr.http, fmt.Sprintf("http://127.0.0.1:%d%s", pr.port, path))
}

func get(client *http.Client, url string) (code int, body string, err error) {
	response, err := client.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // read only
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (pr *process) awaitReady() {
	pr.t.Helper()
	testenv.Eventually(pr.t, patience, "ready", func() error {
		code, body, err := pr.get("/readyz")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s\n%s", code, body, pr.log)
		}
		return err
	})
}

// says waits for one line of the log, which comes through a pipe.
func (pr *process) says(text string) {
	pr.t.Helper()
	testenv.Eventually(pr.t, patience, "log line: "+text, func() error {
		if n := pr.log.lines(text); n != 1 {
			return fmt.Errorf("%d of them in\n%s", n, pr.log)
		}
		return nil
	})
}

// write makes a directory of manifests say what the objects are, in one step.
func (o *objects) write(t testing.TB, dir string) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	var text bytes.Buffer
	add := func(apiVersion, kind string, object any) {
		raw, err := yaml.Marshal(object)
		require.NoError(t, err)
		var document map[string]any
		require.NoError(t, yaml.Unmarshal(raw, &document))
		document["apiVersion"], document["kind"] = apiVersion, kind // those that tests make do not say
		raw, err = yaml.Marshal(document)
		require.NoError(t, err)
		fmt.Fprintf(&text, "---\n%s", raw)
	}
	for _, s := range o.current.Services {
		add("v1", "Service", s)
	}
	for _, s := range o.current.Slices {
		add("discovery.k8s.io/v1", "EndpointSlice", s)
	}
	for _, s := range o.current.Pods {
		add("v1", "Pod", s)
	}
	for _, s := range o.current.Nodes {
		add("v1", "Node", s)
	}
	for _, s := range o.current.Shards {
		add("network.datumapis.com/v1alpha1", "EgressShard", s)
	}
	hidden := filepath.Join(dir, ".new")
	require.NoError(t, os.WriteFile(hidden, text.Bytes(), 0o644))
	require.NoError(t, os.Rename(hidden, filepath.Join(dir, "objects.yaml")))
}

// tableEvents are the kernel's events about tables of a node, by message type.
type tableEvents struct {
	t    testing.TB
	ns   *testenv.NetNS
	conn *netlink.Conn
	mu   sync.Mutex
	seen map[int]int
	mark chan struct{}
}

// watchTables counts what is done to tables from now on.
func watchTables(t testing.TB, ns *testenv.NetNS) *tableEvents {
	t.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	require.NoError(t, conn.JoinGroup(unix.NFNLGRP_NFTABLES))
	e := &tableEvents{t: t, ns: ns, conn: conn, seen: map[int]int{}, mark: make(chan struct{}, 1)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			messages, err := conn.Receive()
			if err != nil {
				return // closed
			}
			for _, m := range messages {
				e.note(m)
			}
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		<-done
	})
	return e
}

// marker is a table that a test makes to see that all earlier events have come.
const marker = "events_up_to_here"

func (e *tableEvents) note(m netlink.Message) {
	if bytes.Contains(m.Data, []byte(marker)) {
		select {
		case e.mark <- struct{}{}:
		default:
		}
		return
	}
	if !bytes.Contains(m.Data, []byte("natplane\x00")) {
		return // somebody's table, and those that the product tries features in
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.seen[int(m.Header.Type)&0xff]++
}

// changes counts the events about our table so far, but for those that say who owns it.
func (e *tableEvents) changes() map[int]int {
	e.t.Helper()
	e.ns.Nft(e.t, "add", "table", "ip", marker)
	select {
	case <-e.mark:
	case <-time.After(patience):
		require.Fail(e.t, "the marker did not come")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	left := map[int]int{}
	for kind, n := range e.seen {
		// The event of a new generation names the process, which is called as the table is.
		if kind != unix.NFT_MSG_NEWTABLE && kind != unix.NFT_MSG_NEWGEN {
			left[kind] = n
		}
	}
	return left
}
