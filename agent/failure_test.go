// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/conntrack"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// faults put failures between an agent and the kernel.
type faults struct {
	mu sync.Mutex
	// commit replaces the next transactions, one after the other.
	commit []func(send func() error) error
	// dumps is the number of dumps that break off after some flows; refuse says which flows cannot be deleted.
	dumps  int
	refuse func(conntrack.Flow) bool
	// broken counts the failures that were put.
	broken int
}

func (f *faults) set(change func(*faults)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

func (f *faults) put() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.broken
}

func (f *faults) install(o *agent.Options) {
	agent.HookCommit(o, f.send)
	agent.WrapFlows(o, func(t conntrack.Table) conntrack.Table {
		if auditIsOff() {
			t = blindTable{t}
		}
		return faultyTable{t, f}
	})
}

func (f *faults) send(send func() error) error {
	f.mu.Lock()
	var fail func(func() error) error
	if len(f.commit) > 0 {
		fail, f.commit = f.commit[0], f.commit[1:]
	}
	f.mu.Unlock()
	if fail == nil {
		return send()
	}
	err := fail(send)
	if err != nil {
		f.set(func(f *faults) { f.broken++ })
	}
	return err
}

// requireUsed shows that every transaction that was to fail did, and returns how many failed.
func (f *faults) requireUsed(t testing.TB) int {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	require.Empty(t, f.commit)
	require.Positive(t, f.broken)
	return f.broken
}

// faultyTable is the kernel's table of flows with its failures.
type faultyTable struct {
	conntrack.Table
	faults *faults
}

func (t faultyTable) Dump(ctx context.Context, q conntrack.Query, visit func(conntrack.Flow)) error {
	breaks := false
	t.faults.set(func(f *faults) {
		if breaks = f.dumps > 0; breaks {
			f.dumps--
			f.broken++
		}
	})
	if breaks {
		return fmt.Errorf("injected: %w", conntrack.ErrInterrupted)
	}
	return t.Table.Dump(ctx, q, visit)
}

func (t faultyTable) Delete(ctx context.Context, flows []conntrack.Flow) (conntrack.Result, error) {
	var allowed []conntrack.Flow
	refused := 0
	t.faults.set(func(f *faults) {
		for _, flow := range flows {
			if f.refuse != nil && f.refuse(flow) {
				refused++
				continue
			}
			allowed = append(allowed, flow)
		}
		f.broken += refused
	})
	result, err := t.Table.Delete(ctx, allowed)
	if result.Failed += refused; refused > 0 {
		err = errors.Join(err, fmt.Errorf("injected: %w", unix.EPERM))
	}
	return result, err
}

// failing fails a transaction that was not applied.
func failing(errno syscall.Errno) func(func() error) error {
	return func(func() error) error { return fmt.Errorf("injected: %w", errno) }
}

// failingStage is a stage whose agent has faults, a log and HTTP.
func failingStage(t testing.TB, edits ...func(*agent.Options)) (s *stage, f *faults, log *writing, metric func(string) float64) {
	t.Helper()
	p := emptyTenant(t, testenv.WithRouterPodRoutes(false))
	p.serveLater(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	f, log = &faults{}, &writing{}
	url := ""
	p.start("node-a", append([]func(*agent.Options){f.install, logTo(log), func(o *agent.Options) { o.HTTP, url = listenIn(t, p.topo.NodeA.NS) }}, edits...)...)
	p.settle()
	client := clientIn(p.topo.NodeA.NS)
	metric = func(name string) float64 {
		t.Helper()
		code, body, err := get(client, url+"/metrics")
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, code)
		for line := range strings.Lines(body) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				var v float64
				_, err := fmt.Sscan(rest, &v)
				require.NoError(t, err)
				return v
			}
		}
		require.Fail(t, "no metric "+name, body)
		return 0
	}
	return newStage(t, p, p.topo.Web), f, log, metric
}

// failedTransactions are what the next transactions of an agent may end with.
func failedTransactions() map[string][]func(func() error) error {
	applied := func(send func() error) error { return errors.Join(send(), fmt.Errorf("injected: %w", unix.ENOBUFS)) }
	passing := func(send func() error) error { return send() }
	return map[string][]func(func() error) error{
		// After an error the table is taken again by a new connection, which is a transaction too.
		"applied by the second attempt": {failing(unix.EPERM), passing, applied},
		"EPERM":                         {failing(unix.EPERM)},
		"EEXIST":                        {failing(unix.EEXIST)},
		"ENOENT":                        {failing(unix.ENOENT)},
		"ENOBUFS not applied":           {failing(unix.ENOBUFS)},
		"ENOBUFS applied":               {applied},
		"dead socket":                   {failing(unix.EBADF)},
		"again and again":               {failing(unix.EPERM), failing(unix.ENOBUFS), failing(unix.ENOENT), applied, failing(unix.EEXIST)},
	}
}

// TestFieldCase_B51_FlowsFollowAlsoAfterFailedTransactions: whatever the transaction of a move fails with, once or several times, table and
// flows are right in the end, log and metrics say that it failed, and an unrelated change in the same pass is not lost.
func TestFieldCase_B51_FlowsFollowAlsoAfterFailedTransactions(t *testing.T) {
	t.Parallel()
	for name, fails := range failedTransactions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f, log, metric := failingStage(t)
			both := s.converseBoth(t, 10)
			db := s.topo.DB
			overTCP().serveOn(t, db.NS, webPort)
			overUDP().serveOn(t, db.NS, webPort)
			swallow(t, db.NS, onewayPort)
			atDB := s.wire(t, db)

			f.set(func(f *faults) { f.commit = fails })
			s.follows(db, db.Addrs...)
			s.serveLater(s.topo.Pod, exposure{name: "pod", public: dual(11), whole: true})
			s.objects.pod(tenantNamespace+"pod", "node-a", s.topo.Pod.Addrs...)
			s.settle()

			failed := f.requireUsed(t)
			for _, c := range both {
				requireCut(t, "TCP in", c.in["TCP in"])
				c.requireArrivesAt(t, db, atDB)
				s.at.requireSilence(t, c.oneWay)
				c.requireNoFlow(t, s.machine)
			}
			s.requireLegal(t, "node-a")
			s.requireFresh(t, "node-a")
			require.Contains(t, elements(t, s.topo.NodeA.NS), "whole4 203.0.113.11")
			require.Positive(t, log.lines("a transaction failed; reading the table again")+log.lines("programming failed"), log)
			require.GreaterOrEqual(t, metric("natplane_programming_failures_total"), float64(failed))
			require.EqualValues(t, 1, metric("natplane_ready"))
		})
	}
}

// TestFieldCase_B51_FlowsEndAlsoAfterFailedTransactions: when the address itself is gone, table and state know nothing of it any more.
func TestFieldCase_B51_FlowsEndAlsoAfterFailedTransactions(t *testing.T) {
	t.Parallel()
	for name, fails := range failedTransactions() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f, _, _ := failingStage(t)
			s.objects.change(shard(200))
			s.settle()
			both := s.converseBoth(t, 10)
			for _, fam := range testenv.Families() {
				overUDP().connect(t, s.topo.Pod.NS, anywhere(), s.udpOut.At(s.topo.Ext.Addr(fam)))
				require.NotEmpty(t, through(t, s.topo.NodeA.NS, public(fam, 200)))
			}
			f.set(func(f *faults) { f.commit = fails })
			gone := nat.NewObjects()
			gone.Services[key(tenantNamespace+"web")] = nil
			for k := range shard(200).Shards {
				gone.Shards[k] = nil
			}
			s.objects.change(gone)
			s.settle()
			f.requireUsed(t)
			for _, c := range both {
				c.requireInCut(t)
				c.requireOutCut(t)
				c.requireNoFlow(t, s.machine)
				require.Empty(t, through(t, s.topo.NodeA.NS, public(c.f, 200)))
			}
		})
	}
}

// TestFieldCase_B59_RefusedDeletionsBlockNothing: the kernel refuses to delete half of the flows; the other half goes, programming goes on,
// and the rest goes when the kernel gives way.
func TestFieldCase_B59_RefusedDeletionsBlockNothing(t *testing.T) {
	t.Parallel()
	s, f, log, metric := failingStage(t)
	node := s.topo.NodeA.NS
	var flows []conntrack.Flow
	for _, fam := range testenv.Families() {
		for port := range uint16(400) {
			flow := plainFlow(unix.IPPROTO_TCP, netip.AddrPortFrom(s.topo.Ext.Addr(fam), 20000+port), netip.AddrPortFrom(public(fam, 10), 80))
			flow.Reply.Src = s.topo.Web.Addr(fam)
			flows = append(flows, flow)
		}
	}
	insert(t, node, flows...)
	ours := func() (n int) {
		for _, f := range allFlows(t, node) {
			if f.Orig.SrcPort >= 20000 && f.Orig.SrcPort < 20400 && f.Orig.DstPort == 80 {
				n++
			}
		}
		return n
	}
	require.Equal(t, len(flows), ours())

	f.set(func(f *faults) { f.refuse = func(flow conntrack.Flow) bool { return flow.Orig.SrcPort%2 == 0 } })
	s.objects.deleteService(tenantNamespace + "web")
	testenv.Eventually(t, patience, "half of the flows go", func() error {
		if n := ours(); n != len(flows)/2 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	// The audit is behind; programming is not.
	s.serveLater(s.topo.DB, exposure{name: "db", public: dual(20), whole: true})
	inside := overTCP().serveOn(t, s.topo.DB.NS, webPort)
	for _, fam := range testenv.Families() {
		testenv.Eventually(t, patience, "the next change", func() error {
			conn, err := testenv.DialTCP(s.topo.Ext.NS, anywhere(), inside.At(public(fam, 20)), soon)
			if err != nil {
				return err
			}
			return conn.Close()
		})
	}
	testenv.Eventually(t, patience, "failed passes are counted", func() error {
		if metric("natplane_audit_failed_passes_total") < 2 || metric("natplane_audit_delete_errors_total") < 400 {
			return errors.New("not yet")
		}
		return nil
	})
	require.Positive(t, log.lines("flow audit incomplete"), log)
	require.Less(t, len(log.String()), 64<<10, "errors are summed up")
	require.Positive(t, s.agents["node-a"].agent.AuditStats().Pending)
	require.EqualValues(t, 1, metric("natplane_ready"), "the table is right")

	f.set(func(f *faults) { f.refuse = nil })
	s.settle()
	require.Zero(t, ours())
}

// TestFieldCase_B61_BrokenDumpsAreTriedAgain and never taken as complete.
func TestFieldCase_B61_BrokenDumpsAreTriedAgain(t *testing.T) {
	t.Parallel()
	for name, dumps := range map[string]int{"at once": 3, "by the next pass": 40} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, f, log, metric := failingStage(t)
			both := s.converseBoth(t, 10)
			f.set(func(f *faults) { f.dumps = dumps })
			s.objects.deleteService(tenantNamespace + "web")
			s.settle()
			require.Equal(t, dumps, f.put())
			for _, c := range both {
				c.requireInCut(t)
				c.requireOutCut(t)
				c.requireNoFlow(t, s.machine)
			}
			if dumps > 5 { // as often as one pass tries
				require.Positive(t, log.lines("flow audit incomplete"), log)
				require.Positive(t, metric("natplane_audit_failed_passes_total"))
			}
		})
	}
}

// TestLastingFailureIsVisible: while the kernel refuses, the agent is not ready and says why, and what was programmed goes on.
func TestLastingFailureIsVisible(t *testing.T) {
	t.Parallel()
	s, f, log, metric := failingStage(t)
	conns := s.through(t, 10, true)
	keeping := keep(t, s.topo.NodeA.NS, conns)
	for range 8 {
		f.set(func(f *faults) { f.commit = append(f.commit, failing(unix.EPERM)) })
	}
	s.serveLater(s.topo.DB, exposure{name: "db", public: dual(20), whole: true})
	testenv.Eventually(t, patience, "not ready", func() error {
		if h := s.agents["node-a"].agent.Health(); h.Ready || !strings.Contains(h.LastError, "operation not permitted") {
			return fmt.Errorf("%+v", h)
		}
		return nil
	})
	require.Zero(t, metric("natplane_ready"))
	require.True(t, s.agents["node-a"].agent.Health().Healthy, "a fault of seconds is no reason for a restart")
	keeping.require(t)
	s.settle()
	require.Equal(t, 8, f.put())
	require.Contains(t, elements(t, s.topo.NodeA.NS), "whole4 203.0.113.20")
	require.LessOrEqual(t, log.lines("level=ERROR"), 8, log)
	require.GreaterOrEqual(t, metric("natplane_programming_failures_total"), 8.0)
}
