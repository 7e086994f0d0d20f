// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/testenv"
)

// outageVariable makes the outage longer than the ten seconds that a routine run can afford, for example 60s.
const outageVariable = "NATPLANE_TEST_OUTAGE"

// caughtUpWithin is how soon after the API server's return a change of its absence has to have reached the packets.
const caughtUpWithin = 2 * time.Second

func outage(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(outageVariable)
	if text == "" {
		return 10 * time.Second
	}
	away, err := time.ParseDuration(text)
	require.NoError(t, err)
	return away
}

// TestClusterServerAway kills the API server after an endpoint changed that the node could not see any more: translation goes on as it was,
// for new connections too, the node says why it is not ready, and is up to date in two seconds once the server is back (R17).
func TestClusterServerAway(t *testing.T) {
	p, away, line := newClusterPlane(t), outage(t), &line{}
	p.access = line.through(p.access)
	web, db, ext := p.topo.Web, p.topo.DB, p.topo.Ext
	p.pod("web", "web", "node-a", web.Addrs...)
	p.expose("web", 10)
	a := p.start("node-a")
	p.translates("node-a", 10, &web.Host)
	answer(t, web.NS)
	answer(t, db.NS)
	conns, busy := map[string]*testenv.Conn{}, newTalkers(t)
	for _, f := range testenv.Families() {
		for _, tr := range []transport{overTCP(), overUDP()} {
			conns[tr.name+" "+f.String()] = tr.connect(t, ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort))
		}
	}
	keeping := keep(t, p.topo.NodeA.NS, conns)
	for _, c := range conns {
		busy.talk(c, false)
	}

	line.cut()
	p.kube.DeletePod(t, tenantA, "web")
	p.pod("web-again", "web", "node-a", db.Addrs...)
	testenv.Eventually(t, controllersTake, "slices of the new Pod", func() error { return p.lists("web", db.Addrs) })
	p.kube.Kill(t)
	line.mend()
	testenv.Eventually(t, controllersTake, "the outage is noticed", func() error {
		if err := a.ready(); err == nil || !strings.Contains(err.Error(), "503 the API server has been away since ") {
			return fmt.Errorf("readyz: %v", err)
		}
		return nil
	})
	remains(t, away, func() error {
		code, body, err := get(&http.Client{Timeout: patience}, a.url+"/healthz")
		if err != nil || code != http.StatusOK {
			return fmt.Errorf("healthz: %d %s %v", code, body, err)
		}
		return p.reaches(web, patience)
	})
	busy.stop()
	keeping.require(t)

	p.kube.Resume(t)
	back := time.Now()
	testenv.Eventually(t, caughtUpWithin, "new connections reach the new endpoint", func() error { return p.reaches(db, soon) })
	t.Logf("packets reach the new endpoint %v after the server was ready again, away for %v", time.Since(back).Round(time.Millisecond), away)
	testenv.Eventually(t, caughtUpWithin, "ready again", a.ready)
	for name, c := range conns {
		if strings.HasPrefix(name, "TCP") {
			requireCut(t, name, c)
		}
	}
}

// reaches returns nil when new connections to the address .10 reach a machine.
func (p *clusterPlane) reaches(m *testenv.Machine, timeout time.Duration) error {
	for _, f := range testenv.Families() {
		for _, tr := range []transport{overTCP(), overUDP()} {
			c, err := tr.dial(p.topo.Ext.NS, anywhere(), netip.AddrPortFrom(public(f, 10), appPort), timeout)
			if err != nil {
				return err
			}
			if c.PeerLocal.Addr() != m.Addr(f) {
				err = fmt.Errorf("%s reached %s", tr.name, c.PeerLocal)
			}
			if err := errors.Join(err, c.Close()); err != nil {
				return err
			}
		}
	}
	return nil
}

// lists returns nil when the slices of a Service hold these addresses and no others.
func (p *clusterPlane) lists(service string, addrs []netip.Addr) error {
	slices, err := p.slicesOf(service)
	if err != nil {
		return err
	}
	listed := map[string]bool{}
	for _, s := range slices {
		for _, e := range s.Endpoints {
			listed[e.Addresses[0]] = true
		}
	}
	for _, a := range addrs {
		if !listed[a.String()] {
			return fmt.Errorf("%v lacks %s", listed, a)
		}
		delete(listed, a.String())
	}
	if len(listed) > 0 {
		return fmt.Errorf("%v too much", listed)
	}
	return nil
}

// line is a connection to the API server that a test can cut.
type line struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

// through returns a copy of the configuration that connects through the line.
func (l *line) through(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.down {
			return nil, errors.Join(errors.New("the line is cut"), conn.Close())
		}
		l.conns = append(l.conns, conn)
		return conn, nil
	}
	return config
}

func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, conn := range l.conns {
		_ = conn.Close() // that is the purpose
	}
	l.conns = nil
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}
