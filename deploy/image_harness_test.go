// SPDX-License-Identifier: Apache-2.0

//go:build image

package deploy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/container"
	"github.com/natplane/natplane/testenv/container/oci"
)

// patience is how long a test waits for an effect that has to come.
const patience = 10 * time.Second

// manifestDir is where the container sees the manifests.
const manifestDir = "/manifests"

const (
	tenantName  = "ten"
	tenantTable = 100
)

// node is a node whose agents are containers.
type node struct {
	*testenv.Node
	t         *testing.T
	topo      *testenv.Topology
	tenant    *testenv.Machine
	image     *container.Image
	launcher  container.Launcher
	manifests string
	http      *http.Client
}

// newNode has the objects of the examples, and a tenant behind an interface of its own.
func newNode(t *testing.T, image *container.Image, launcher container.Launcher) *node {
	t.Helper()
	topo := testenv.NewTopology(t)
	n := &node{Node: topo.NodeA, t: t, topo: topo, image: image, launcher: launcher, manifests: t.TempDir()}
	require.NoError(t, os.CopyFS(n.manifests, os.DirFS("examples")))
	n.http = &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
	n.addTenant()
	return n
}

func (n *node) addTenant() {
	n.t.Helper()
	addr := netip.MustParseAddr("fd00:7::10")
	var err error
	n.tenant, err = n.topo.AddMachine(n.Node, tenantName, addr)
	require.NoError(n.t, err)
	nl, err := n.NS.Netlink()
	require.NoError(n.t, err)
	link, err := nl.LinkByName(n.tenant.NodeIf)
	require.NoError(n.t, err)
	back := &netlink.Route{Dst: netlink.NewIPNet(addr.AsSlice()), LinkIndex: link.Attrs().Index, Table: tenantTable}
	require.NoError(n.t, nl.RouteAdd(back))
}

// dial connects inside the node; the address is an IP address, so the socket is made on the calling thread.
func (n *node) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.NS.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// pod is the Pod that the DaemonSet makes.
func pod(t *testing.T) corev1.PodSpec {
	t.Helper()
	d := read[appsv1.DaemonSet](t, "base", "daemonset.yaml")
	return d.Spec.Template.Spec
}

// configure is the container of that Pod on the node, with the arguments or the environment changed.
func (n *node) configure(change func(*corev1.Container), binds ...container.Bind) oci.Config {
	n.t.Helper()
	p := pod(n.t)
	change(&p.Containers[0])
	config, err := container.Configure(n.image, p, n.Name, binds...)
	require.NoError(n.t, err)
	return config
}

// start runs it.
func (n *node) start(change func(*corev1.Container), binds ...container.Bind) *container.Container {
	n.t.Helper()
	return n.launcher.Start(n.t, n.NS, n.configure(change, binds...))
}

// fromManifests has the agent read a directory in place of an API server.
func (n *node) fromManifests() *container.Container {
	n.t.Helper()
	return n.start(func(c *corev1.Container) {
		c.Args = append(c.Args, "--manifests="+manifestDir, "--cluster-cidr=10.244.0.0/16", "--cluster-cidr=fd00:10:244::/48",
			fmt.Sprintf("--tenant-interface=%s=%d", n.tenant.NodeIf, tenantTable))
	}, container.Bind{From: n.manifests, To: manifestDir})
}

// execute runs another command in a container like that of the agent, and returns its exit code and what it printed.
func (n *node) execute(args ...string) (int, string) {
	n.t.Helper()
	c := n.start(func(c *corev1.Container) { c.Args = args })
	code, err := c.Wait(patience)
	require.NoError(n.t, err)
	return code, c.Output()
}

// probe asks what a probe of the manifest asks, from where the kubelet asks: the network of the node.
func (n *node) probe(p *corev1.Probe) error {
	code, body, err := n.get(p.HTTPGet.Path, p)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("%d %s", code, body)
	}
	return err
}

func (n *node) get(path string, p *corev1.Probe) (code int, body string, err error) {
	at := net.JoinHostPort(p.HTTPGet.Host, p.HTTPGet.Port.String())
	response, err := n.http.Get("http://" + at + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func (n *node) awaitReady(c *container.Container) {
	n.t.Helper()
	ready := pod(n.t).Containers[0].ReadinessProbe
	testenv.Eventually(n.t, patience, "ready", func() error {
		if err := n.probe(ready); err != nil {
			return fmt.Errorf("%w\n%s", err, c.Output())
		}
		return nil
	})
}

// rewrite changes the examples in one step.
func (n *node) rewrite(change func(string) string) {
	n.t.Helper()
	file := filepath.Join(n.manifests, "vm-instances.yaml")
	text, err := os.ReadFile(file)
	require.NoError(n.t, err)
	changed := change(string(text))
	require.NotEqual(n.t, string(text), changed)
	hidden := filepath.Join(n.manifests, ".new")
	require.NoError(n.t, os.WriteFile(hidden, []byte(changed), 0o644))
	require.NoError(n.t, os.Rename(hidden, file))
}
