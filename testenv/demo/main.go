// SPDX-License-Identifier: Apache-2.0

// Command demo shows the main job of natplane: a router with clients, a node and its machines as network namespaces, the agent on the
// example manifests, traffic in both directions, what each side saw of it, the plan and the kernel's table. It leaves nothing behind.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/natplane/natplane/testenv"
)

// patience is how long a single effect may take; all of them together take a second or two.
const patience = 10 * time.Second

const (
	clusterFlags = "--cluster-cidr=10.244.0.0/16"
	clusterFlag6 = "--cluster-cidr=fd00:10:244::/48"
	serviceFlag  = "--cluster-cidr=10.96.0.0/16"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	binary := flag.String("binary", "bin/natplane", "the natplane to show")
	manifests := flag.String("manifests", "deploy/examples", "what the node serves")
	flag.Parse()
	if *binary, err = filepath.Abs(*binary); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	topo, err := testenv.Build(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, topo.Close()) }()

	show := &demo{ctx: ctx, topo: topo, binary: *binary, manifests: *manifests}
	stop, err := show.startAgent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return show.tell()
}

type demo struct {
	ctx               context.Context
	topo              *testenv.Topology
	binary, manifests string
}

// startAgent runs the real binary on node-a and returns when it is ready.
func (d *demo) startAgent() (stop func() error, err error) {
	cmd := exec.Command(d.binary, "agent", "--node-name=node-a", "--manifests="+d.manifests, clusterFlags, clusterFlag6, serviceFlag)
	cmd.Stderr = os.Stderr
	if err := d.topo.NodeA.NS.Start(cmd); err != nil {
		return nil, err
	}
	stop = func() error {
		// The process is ours and not waited for yet, so its number cannot have passed to another.
		return errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	}
	if err := d.waitReady(); err != nil {
		return nil, errors.Join(err, stop())
	}
	return stop, nil
}

func (d *demo) waitReady() error {
	ctx, cancel := context.WithTimeout(d.ctx, patience)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DialContext: d.dial, DisableKeepAlives: true}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9410/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent did not become ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// dial connects inside the node; the address is an IP address, so that the socket is opened on the calling thread.
func (d *demo) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = d.topo.NodeA.NS.Do(func() (err error) {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// tell sends the traffic of the story and prints what was seen.
func (d *demo) tell() error {
	t := d.topo
	fmt.Printf("a client %s, node-a %s, machines web %s and db %s behind it\n\n", t.Ext.Addr4(), t.NodeA.Addr4(), t.Web.Addr4(), t.DB.Addr4())
	steps := []step{
		{"client to the whole address of web, any port", t.Ext.NS, t.Web.NS, "203.0.113.10", 8080, 8080, false},
		{"the same over IPv6", t.Ext.NS, t.Web.NS, "2001:db8:203::10", 8080, 8080, false},
		{"client to web's second address, port 443 of the list", t.Ext.NS, t.Web.NS, "203.0.113.11", 443, 8443, false},
		{"client to a port that is not in the list", t.Ext.NS, t.Web.NS, "203.0.113.11", 8080, 8080, true},
		{"client to db, port 22 of its list", t.Ext.NS, t.DB.NS, "203.0.113.20", 22, 22, false},
		{"db to its own public address", t.DB.NS, t.DB.NS, "203.0.113.20", 22, 22, false},
		{"db to the public address of web, on the same node", t.DB.NS, t.Web.NS, "203.0.113.10", 8080, 8080, false},
		{"web's own connection leaves with its primary", t.Web.NS, t.Ext.NS, t.Ext.Addr4().String(), 9000, 9000, false},
		{"the same over IPv6", t.Web.NS, t.Ext.NS, t.Ext.Addr6().String(), 9000, 9000, false},
		{"web to db inside the cluster stays private", t.Web.NS, t.DB.NS, t.DB.Addr4().String(), 22, 22, false},
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	fmt.Println("\nThe plan of node-a:")
	if err := d.print(d.binary, "plan", "-f", d.manifests, "--node-name=node-a", clusterFlags, clusterFlag6, serviceFlag); err != nil {
		return err
	}
	fmt.Println("\nThe kernel of node-a:")
	return d.print("nft", "list", "table", "inet", "natplane")
}

// step is one connection and what should come of it.
type step struct {
	what         string
	from, to     *testenv.NetNS
	dialled      string
	port, target uint16
	refused      bool
}

func (s step) run() (err error) {
	server, err := testenv.ServeTCP(s.to, netip.AddrPortFrom(netip.IPv6Unspecified(), s.target))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	remote := netip.AddrPortFrom(netip.MustParseAddr(s.dialled), s.port)
	timeout := patience
	if s.refused {
		timeout = 300 * time.Millisecond
	}
	conn, err := testenv.DialTCP(s.from, netip.AddrPort{}, remote, timeout)
	if s.refused {
		if !testenv.IsUnreachable(err) {
			return fmt.Errorf("it should have been refused, but: %v", err)
		}
		fmt.Printf("- %s\n    dialled %s: no answer\n", s.what, remote)
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Printf("- %s\n    dialled %s as %s; the other side is %s and saw %s\n", s.what, remote, conn.Local, conn.PeerLocal, conn.SeenByPeer)
	return conn.Close()
}

func (d *demo) print(name string, args ...string) error {
	text, err := d.topo.NodeA.NS.Run(d.ctx, name, args...)
	w := bufio.NewWriter(os.Stdout)
	fmt.Fprint(w, text)
	return errors.Join(err, w.Flush())
}
