// SPDX-License-Identifier: Apache-2.0

//go:build image

package deploy

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/container"
)

// noCrun is no failure of the product, and no fault of the manifest, which Try does not look at: machines that are containers themselves may
// forbid it.
const noCrun = "NO SECCOMP PROFILE IS TESTED, because crun cannot run any container on this machine:"

// TestImage runs the image with the security context of the DaemonSet: first in a container of an OCI runtime, where this machine allows
// that, and then without one.
func TestImage(t *testing.T) {
	testenv.RequireTool(t, "nft")
	image := container.Build(t, "..", "Dockerfile")
	for _, launcher := range []container.Launcher{container.Crun(t), container.Bare(t)} {
		t.Run(launcher.String(), func(t *testing.T) {
			if err := launcher.Try(t, image); err != nil {
				require.True(t, launcher.Seccomp, "bare needs what network namespaces need: %v", err)
				t.Skip(noCrun, err)
			}
			n := newNode(t, image, launcher)
			t.Run("life of an agent", n.testLife)
			t.Run("not in a cluster", n.testNotInCluster)
		})
	}
}

// testLife: everything that an agent does with the kernel, with the capabilities that it is given.
func (n *node) testLife(t *testing.T) {
	n.t = t
	agent := n.fromManifests()
	n.awaitReady(agent)
	n.requireContext(agent)
	c := pod(t).Containers[0]
	require.NoError(t, n.probe(c.StartupProbe))
	require.NoError(t, n.probe(c.LivenessProbe))

	n.requireTranslation()
	n.requireAudit()
	n.requireOwnership()
	n.requireContent(agent)

	stopped := time.Now()
	require.NoError(t, agent.Signal(unix.SIGTERM))
	code, err := agent.Wait(time.Second)
	require.NoError(t, err)
	require.Zero(t, code, agent.Output())
	t.Logf("ended %v after SIGTERM", time.Since(stopped))

	n.requireCleanup()
}

// requireContext: the container has what the manifest asks for, and no more.
func (n *node) requireContext(c *container.Container) {
	n.t.Helper()
	netAdmin := fmt.Sprintf("%016x", 1<<unix.CAP_NET_ADMIN)
	want := map[string]string{
		"CapBnd": netAdmin, "CapPrm": netAdmin, "CapEff": netAdmin, "CapInh": fmt.Sprintf("%016x", 0), "CapAmb": fmt.Sprintf("%016x", 0),
		"Uid": "0 0 0 0", "Gid": "0 0 0 0", "NoNewPrivs": "1", "Seccomp": "0",
	}
	if n.launcher.Seccomp {
		want["Seccomp"] = "2" // SECCOMP_MODE_FILTER
	}
	have := map[string]string{}
	for name := range want {
		value, err := c.Status(name)
		require.NoError(n.t, err)
		have[name] = value
	}
	require.Equal(n.t, want, have)
	for _, at := range []string{"/", "/proc/sys"} {
		options, err := c.MountOptions(at)
		require.NoError(n.t, err)
		require.Contains(n.t, strings.Split(options, ","), "ro", at)
	}
	mine, err := os.Readlink("/proc/self/ns/net")
	require.NoError(n.t, err)
	theirs, err := c.NetNS()
	require.NoError(n.t, err)
	require.NotEqual(n.t, mine, theirs, "not in the network of this machine")
}

// requireTranslation: packets of all kinds of rules, in both families.
func (n *node) requireTranslation() {
	n.t.Helper()
	t, ext, web := n.topo, n.topo.Ext, n.topo.Web
	for _, p := range []struct {
		what         string
		from, to     *testenv.NetNS
		dialled      string
		port, target uint16
		seen         string
	}{
		{"a whole address", ext.NS, web.NS, "203.0.113.10", 8080, 8080, ext.Addr4().String()},
		{"a whole address", ext.NS, web.NS, "2001:db8:203::10", 8080, 8080, ext.Addr6().String()},
		{"a port of a list", ext.NS, web.NS, "203.0.113.11", 443, 8443, ext.Addr4().String()},
		{"a process of the node", n.NS, web.NS, "203.0.113.10", 8080, 8080, n.Addr4().String()},
		{"a machine's own connection", web.NS, ext.NS, ext.Addr4().String(), 9000, 9000, "203.0.113.10"},
		{"a machine's own connection", web.NS, ext.NS, ext.Addr6().String(), 9000, 9000, "2001:db8:203::10"},
		{"a private source of the shard", t.Pod.NS, ext.NS, ext.Addr6().String(), 9000, 9000, "2001:db8:203::200"},
		{"a tenant of the shard", n.tenant.NS, ext.NS, ext.Addr6().String(), 9000, 9000, "2001:db8:203::200"},
	} {
		server, err := testenv.ServeTCP(p.to, netip.AddrPortFrom(netip.IPv6Unspecified(), p.target))
		require.NoError(n.t, err)
		conn, err := testenv.DialTCP(p.from, netip.AddrPort{}, netip.AddrPortFrom(netip.MustParseAddr(p.dialled), p.port), patience)
		require.NoError(n.t, err, p.what)
		require.Equal(n.t, p.seen, conn.SeenByPeer.Addr().String(), p.what)
		require.NoError(n.t, conn.Close())
		require.NoError(n.t, server.Close())
	}
}

// requireAudit: a flow that the rules no longer make is deleted.
func (n *node) requireAudit() {
	n.t.Helper()
	server := testenv.ListenUDP(n.t, n.topo.Web.NS, netip.MustParseAddrPort("[::]:53"))
	conn, err := testenv.DialUDP(n.topo.Ext.NS, netip.AddrPort{}, server.At(netip.MustParseAddr("203.0.113.11")), patience)
	require.NoError(n.t, err)
	defer conn.Close()
	n.rewrite(func(text string) string {
		return strings.Replace(text, "- {name: dns, port: 53, targetPort: 53, protocol: UDP}", "", 1)
	})
	testenv.Eventually(n.t, patience, "the audit cuts a flow", func() error {
		metrics, err := n.metrics()
		if err == nil && metrics["natplane_audit_flows_deleted_total"] != "1" {
			err = fmt.Errorf("deleted: %s", metrics["natplane_audit_flows_deleted_total"])
		}
		return err
	})
	conn.SetTimeout(200 * time.Millisecond)
	require.True(n.t, testenv.IsUnreachable(conn.RoundTrip()))
}

// requireOwnership: nobody takes the table from a running agent.
func (n *node) requireOwnership() {
	n.t.Helper()
	code, output := n.execute("cleanup")
	require.NotZero(n.t, code, output)
	require.Contains(n.t, output, "stop it first")
	code, output = n.execute("status")
	require.Zero(n.t, code, output)
	require.Contains(n.t, output, "203.0.113.10")
}

// requireContent: the agent found everything that it reads, and nothing to complain about.
func (n *node) requireContent(agent *container.Container) {
	n.t.Helper()
	metrics, err := n.metrics()
	require.NoError(n.t, err)
	for name, value := range map[string]string{
		"natplane_ready": "1", "natplane_node_warnings": "0", "natplane_source_problems": "0", "natplane_programming_failures_total": "0",
		"natplane_audit_failed_passes_total": "0", "natplane_audit_delete_errors_total": "0", "natplane_drift_repairs": "0",
	} {
		require.Equal(n.t, value, metrics[name], name)
	}
	require.NotEmpty(n.t, metrics["natplane_conntrack_limit"], "read from /proc/sys")
	for line := range strings.Lines(agent.Output()) {
		require.Contains(n.t, line, `"level":"INFO"`)
	}
}

// requireCleanup: what an agent left is removed by the command, and only by it.
func (n *node) requireCleanup() {
	n.t.Helper()
	require.Contains(n.t, n.NS.Nft(n.t, "list", "tables"), "inet natplane\n")
	code, output := n.execute("cleanup")
	require.Zero(n.t, code, output)
	require.Contains(n.t, output, "removed table inet natplane")
	require.NotContains(n.t, n.NS.Nft(n.t, "list", "tables"), "natplane")
}

// testNotInCluster: without the files and variables that a cluster gives its Pods, the agent says which it misses.
func (n *node) testNotInCluster(t *testing.T) {
	n.t = t
	run := func(env ...corev1.EnvVar) string {
		c := n.start(func(c *corev1.Container) { c.Env = append(c.Env, env...) })
		code, err := c.Wait(patience)
		require.NoError(t, err)
		require.NotZero(t, code)
		return c.Output()
	}
	require.Contains(t, run(), "KUBERNETES_SERVICE_HOST")
	output := run(corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: "10.96.0.1"}, corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: "443"})
	require.Contains(t, output, "/var/run/secrets/kubernetes.io/serviceaccount/token")
}

// metrics are those without labels, by name.
func (n *node) metrics() (map[string]string, error) {
	_, body, err := n.get("/metrics", pod(n.t).Containers[0].ReadinessProbe)
	metrics := map[string]string{}
	for line := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		metrics[name] = value
	}
	return metrics, err
}
