// SPDX-License-Identifier: Apache-2.0

//go:build image && cluster

package deploy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/container"
	"github.com/natplane/natplane/testenv/kube"
)

// accountDir is where a kubelet puts the token of a Pod's account, and the address of the API server into the environment.
const accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// TestClusterImage deploys: the image with the security context of the DaemonSet, and of the API server only what a Pod is given, with the
// rights of the ClusterRole.
func TestClusterImage(t *testing.T) {
	image := container.Build(t, "..", "Dockerfile")
	launcher := launcherFor(t, image)
	n := newNode(t, image, launcher)
	cluster := kube.Start(t)
	cluster.Definition(t, "crd/egressshard.yaml")
	cluster.Node(t, n.Name, n.Addr4().String(), n.Addr6().String())
	access := cluster.Account(t, "natplane-system", "natplane", "base/clusterrole.yaml")
	web := n.topo.Web
	cluster.Pod(t, "tenant-a", "web", n.Name, map[string]string{"app": "web"}, web.Addr4().String(), web.Addr6().String())
	cluster.Service(t, "tenant-a", "web", "natplane")
	cluster.Assign(t, "tenant-a", "web", "203.0.113.10")

	server := n.bringServer(cluster)
	agent := n.start(func(c *corev1.Container) {
		c.Env = append(c.Env, corev1.EnvVar{Name: "KUBERNETES_SERVICE_HOST", Value: server.Addr().String()},
			corev1.EnvVar{Name: "KUBERNETES_SERVICE_PORT", Value: fmt.Sprint(server.Port())})
	}, container.Bind{From: mountedAccount(t, access), To: accountDir})
	n.awaitReady(agent)
	n.requireContext(agent)

	listening := testenv.ListenTCP(t, web.NS, netip.MustParseAddrPort("[::]:8080"))
	testenv.Eventually(t, 3*patience, "the API server's controllers and the agent serve the address", func() error {
		conn, err := testenv.DialTCP(n.topo.Ext.NS, netip.AddrPort{}, listening.At(netip.MustParseAddr("203.0.113.10")), time.Second)
		return errors.Join(err, closed(conn))
	})
	testenv.Eventually(t, patience, "the condition of the Service", func() error {
		s, err := cluster.Core.Services("tenant-a").Get(t.Context(), "web", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(s.Status.Conditions, "networking.cozystack.io/Programmed") {
			err = fmt.Errorf("conditions %v\n%s", s.Status.Conditions, agent.Output())
		}
		return err
	})
	require.NoError(t, agent.Signal(unix.SIGTERM))
	code, err := agent.Wait(time.Second)
	require.NoError(t, err)
	require.Zero(t, code, agent.Output())
	for line := range strings.Lines(agent.Output()) {
		require.Contains(t, line, `"level":"INFO"`)
	}
}

func closed(c *testenv.Conn) error {
	if c == nil {
		return nil
	}
	return c.Close()
}

// launcherFor is crun, if this machine allows it.
func launcherFor(t *testing.T, image *container.Image) container.Launcher {
	t.Helper()
	launcher := container.Crun(t)
	if err := launcher.Try(t, image); err != nil {
		t.Log(noCrun, err)
		return container.Bare(t)
	}
	return launcher
}

// mountedAccount writes the files of a service account.
func mountedAccount(t *testing.T, access *rest.Config) string {
	t.Helper()
	ca := access.CAData
	if len(ca) == 0 {
		var err error
		ca, err = os.ReadFile(access.CAFile)
		require.NoError(t, err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"token": access.BearerToken, "ca.crt": string(ca), "namespace": "natplane-system"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	return dir
}

// bringServer makes the API server, which listens on this machine's loopback, reachable on the node's.
func (n *node) bringServer(cluster *kube.Cluster) netip.AddrPort {
	n.t.Helper()
	u, err := url.Parse(cluster.Config.Host)
	require.NoError(n.t, err)
	var listener net.Listener
	require.NoError(n.t, n.NS.Do(func() error {
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
		return err
	}))
	n.t.Cleanup(func() { require.NoError(n.t, listener.Close()) })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return // closed
			}
			go join(from, u.Host)
		}
	}()
	return netip.MustParseAddrPort(listener.Addr().String())
}

// join copies both ways until either side ends.
func join(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return // the client sees that the connection ends
	}
	defer to.Close()
	ended := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
		go func() {
			_, _ = io.Copy(way[0], way[1]) // both sides see the end of a connection themselves
			ended <- struct{}{}
		}()
	}
	<-ended
}
