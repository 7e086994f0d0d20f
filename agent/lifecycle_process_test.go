// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/testenv"
)

// processStage has the machine web with a whole address, served by a process that a test can kill.
func processStage(t testing.TB, flags ...string) (*stage, *process, string) {
	t.Helper()
	p := emptyTenant(t)
	p.objects.expose(exposure{name: tenantNamespace + "web", public: dual(10), whole: true, node: "node-a", backends: p.topo.Web.Addrs})
	dir := t.TempDir()
	p.objects.write(t, dir)
	pr := launch(t, p.topo.NodeA, dir, 9410, flags...)
	pr.awaitReady()
	return newStage(t, p, p.topo.Web), pr, dir
}

// TestProcessesComeAndGoUnderLoad: no packet is lost, no flow changes, no element is written, whatever ends the process; and without any,
// new connections are translated too.
func TestProcessesComeAndGoUnderLoad(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]unix.Signal{"kill -9": unix.SIGKILL, "stop": unix.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pr, dir := processStage(t)
			conns := s.through(t, 10, true)
			events := watchTables(t, s.topo.NodeA.NS)
			s.underLoad(t, conns, func() {
				for range 3 {
					pr.end(end)
					s.through(t, 10, true)
					pr = launch(t, s.topo.NodeA, dir, 9410)
					pr.awaitReady()
				}
			})
			require.Empty(t, events.changes())
			require.Zero(t, pr.log.lines("level=ERROR")+pr.log.lines("level=WARN"), pr.log)
			require.Zero(t, pr.log.lines("programmed")+pr.log.lines("stale flows"), pr.log)
		})
	}
}

// TestUpgradeUnderLoad: the new process starts before the old one ends, and works within a second of that.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"owned": nil, "unowned": {"--unowned"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, old, dir := processStage(t, flags...)
			conns := s.through(t, 10, true)
			events := watchTables(t, s.topo.NodeA.NS)
			s.underLoad(t, conns, func() {
				for i := range 3 {
					successor := launch(t, s.topo.NodeA, dir, 9411+i, flags...)
					testenv.Eventually(t, patience, "the new process waits", func() error {
						code, body, err := successor.get("/readyz")
						if err == nil && (code != http.StatusServiceUnavailable || body != "another agent owns the table on this node\n") {
							err = fmt.Errorf("%d %s", code, body)
						}
						return err
					})
					old.end(unix.SIGTERM)
					successor.awaitReady()
					successor.says("waiting for its end")
					successor.says("took over from the other agent")
					old = successor
				}
			})
			require.Empty(t, events.changes())
		})
	}
}

// underLoad is undisturbed for a node whose agent is a process.
func (s *stage) underLoad(t testing.TB, conns map[string]*testenv.Conn, change func()) {
	t.Helper()
	keeping, busy := keep(t, s.topo.NodeA.NS, conns), newTalkers(t)
	for _, c := range conns {
		busy.talk(c, false)
	}
	change()
	busy.stop()
	keeping.require(t)
}

// TestCleanupCommand refuses while a process runs, says what is wrong, and afterwards removes table and flows.
func TestCleanupCommand(t *testing.T) {
	t.Parallel()
	for name, flags := range map[string][]string{"owned": nil, "unowned": {"--unowned"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, pr, dir := processStage(t, flags...)
			node, pod := s.topo.NodeA.NS, s.topo.Pod
			s.objects.change(shard(200))
			s.objects.write(t, dir)
			conns := s.through(t, 10, true)
			for _, f := range testenv.Families() {
				testenv.Eventually(t, patience, "the shard translates", func() error {
					conn, err := testenv.DialUDP(pod.NS, anywhere(), s.udpOut.At(s.topo.Ext.Addr(f)), patience)
					if err != nil {
						return err
					}
					if seen := conn.SeenByPeer.Addr(); seen != public(f, 200) {
						return errors.Join(fmt.Errorf("seen from %s", seen), conn.Close())
					}
					conns["shard "+f.String()] = conn
					return nil
				})
			}
			cleanup := func() (string, error) {
				path, err := product()
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				return node.Run(ctx, path, "cleanup")
			}
			keeping := keep(t, node, conns)
			out, err := cleanup()
			require.Error(t, err)
			require.Contains(t, out, "stop it first")
			keeping.require(t)

			pr.end(unix.SIGTERM)
			out, err = cleanup()
			require.NoError(t, err)
			require.Contains(t, out, "removed table inet natplane")
			require.NotContains(t, node.Nft(t, "list", "tables"), "natplane")
			for _, f := range testenv.Families() {
				require.Empty(t, translated(through(t, node, public(f, 10))))
				require.Empty(t, through(t, node, public(f, 200)))
			}
			out, err = cleanup()
			require.NoError(t, err)
			require.Contains(t, out, "nothing to remove")
		})
	}
}
