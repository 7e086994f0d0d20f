// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// agentTakes bounds a start, or a fleet that has to be followed.
	agentTakes = 10 * time.Minute
	// agentSettles is how long the kernel is looked at no more often.
	agentSettles = 500 * time.Millisecond
)

// buildProduct compiles the binary as `make build` does.
func buildProduct(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "natplane")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "./cmd/natplane")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building natplane, from the root of the repository: %w\n%s", err, out)
	}
	return path, nil
}

// agentProcess is the product on node-a. The API server, which is on the loopback of this process, is reached through a listener on the
// node's loopback.
type agentProcess struct {
	bench   *clusterBench
	cmd     *exec.Cmd
	forward *forwarder
}

func (b *clusterBench) startAgent(ctx context.Context, name string) (*agentProcess, error) {
	forward, err := b.forward()
	if err != nil {
		return nil, err
	}
	a := &agentProcess{bench: b, forward: forward}
	a.cmd = exec.CommandContext(ctx, b.binary, "agent", "--node-name="+name, "--kubeconfig="+b.server.kubeconfig, "--cluster-cidr=10.0.0.0/8",
		"--log-level=warn")
	a.cmd.Stderr = os.Stderr
	if err := b.topo.NodeA.NS.Start(a.cmd); err != nil {
		return nil, errors.Join(err, forward.close())
	}
	return a, nil
}

// translates waits until the kernel holds so many public addresses.
func (a *agentProcess) translates(ctx context.Context, services int) error {
	ctx, cancel := context.WithTimeout(ctx, agentTakes)
	defer cancel()
	tick := time.NewTicker(agentSettles)
	defer tick.Stop()
	for {
		out, err := a.bench.topo.NodeA.NS.Run(ctx, "nft", "list", "set", "inet", "natplane", "public4")
		// The machine whose address changes has one only then.
		if have := strings.Count(out, "comment \"") - 1; err == nil && have >= services-1 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the kernel does not hold %d addresses: %w", services, ctx.Err())
		case <-tick.C:
		}
	}
}

// ready waits until the agent has read every object and programmed what they ask for.
func (a *agentProcess) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, agentTakes)
	defer cancel()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: a.dial}}
	tick := time.NewTicker(agentSettles)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9410/readyz", nil)
		if err != nil {
			return err
		}
		if resp, err := client.Do(req); err == nil {
			if err := resp.Body.Close(); err != nil {
				return err
			}
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the agent does not become ready: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

// dial connects inside the node's namespace.
func (a *agentProcess) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = a.bench.topo.NodeA.NS.Do(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// memory is the resident memory of the agent now and at its peak, in MiB.
func (a *agentProcess) memory() (now, peak float64, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[0] != "VmRSS:" && fields[0] != "VmHWM:" {
			continue
		}
		kib, err := strconv.ParseFloat(fields[1], 64)
		if err != nil {
			return 0, 0, err
		}
		if fields[0] == "VmRSS:" {
			now = kib / 1024
		} else {
			peak = kib / 1024
		}
	}
	return now, peak, nil
}

// stop ends the agent; more calls do nothing.
func (a *agentProcess) stop() error {
	if a.cmd.ProcessState != nil {
		return nil
	}
	err := a.cmd.Process.Signal(syscall.SIGTERM)
	if waited := a.cmd.Wait(); waited != nil {
		err = errors.Join(err, fmt.Errorf("agent: %w", waited))
	}
	return errors.Join(err, a.forward.close())
}

// forwarder listens on the address of the API server inside the node's namespace and connects to it outside.
type forwarder struct {
	listener net.Listener
	work     sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

func (b *clusterBench) forward() (*forwarder, error) {
	server, err := url.Parse(b.server.config.Host)
	if err != nil {
		return nil, err
	}
	f := &forwarder{}
	if err := b.topo.NodeA.NS.Do(func() (err error) {
		f.listener, err = net.Listen("tcp", server.Host)
		return err
	}); err != nil {
		return nil, fmt.Errorf("in place of the API server: %w", err)
	}
	f.work.Go(func() {
		for {
			inner, err := f.listener.Accept()
			if err != nil {
				return // closed
			}
			outer, err := net.Dial("tcp", server.Host)
			if err != nil {
				_ = inner.Close() // as the server does that is not there
				continue
			}
			f.join(inner, outer)
		}
	})
	return f, nil
}

// join copies in both directions until one end closes.
func (f *forwarder) join(inner, outer net.Conn) {
	f.mu.Lock()
	f.conns = append(f.conns, inner, outer)
	f.mu.Unlock()
	for _, way := range [][2]net.Conn{{inner, outer}, {outer, inner}} {
		f.work.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // either end may go at any time
			_, _ = way[0].Close(), way[1].Close()
		})
	}
}

func (f *forwarder) close() error {
	err := f.listener.Close()
	f.mu.Lock()
	for _, c := range f.conns {
		_ = c.Close() // may be closed already
	}
	f.mu.Unlock()
	f.work.Wait()
	return err
}
