// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// outageVariable makes the outage longer than the ten seconds that a routine run can afford, for example 60s.
const outageVariable = "NATPLANE_TEST_OUTAGE"

// TestServerAway kills the server and changes an endpoint before the node can see it: the node must know within two seconds after the
// server's return (R17).
func TestServerAway(t *testing.T) {
	away := 10 * time.Second
	if text := os.Getenv(outageVariable); text != "" {
		var err error
		away, err = time.ParseDuration(text)
		require.NoError(t, err)
	}
	c := twoNodes(t)
	line, log := newLine(), &testenv.Output{}
	v := follow(t, line.cuttable(agentConfig(t, c)), nodeA, slog.New(slog.NewTextHandler(log, nil)))
	v.eventually(t, soon, "first lists", func(o nat.Objects, complete bool) bool { return complete && endpoints(o, "vm-1")["10.244.1.10"] })

	line.cut()
	c.DeletePod(t, tenant, "vm-1")
	c.Pod(t, tenant, "vm-1b", nodeA, app("vm-1"), "10.244.1.11")
	// The slices are in etcd before the server dies.
	other := follow(t, c.Config, nodeB, nil)
	other.eventually(t, soon, "new endpoint", func(o nat.Objects, _ bool) bool {
		found := endpoints(o, "vm-1")
		return found["10.244.1.11"] && !found["10.244.1.10"]
	})
	c.Kill(t)
	line.mend()

	testenv.Eventually(t, soon, "outage noticed", func() error { return connected(v, false) })
	holds(t, away, func() error {
		var err error
		v.see(func(o nat.Objects, complete bool) {
			if !complete || len(o.Services) != 1 || !endpoints(o, "vm-1")["10.244.1.10"] || len(o.Nodes) != 2 || v.deletes != 0 {
				err = fmt.Errorf("the outage changed what was delivered: %d deletes", v.deletes)
			}
		})
		return err
	})

	c.Resume(t)
	back := time.Now()
	v.eventually(t, 2*time.Second, "caught up", func(o nat.Objects, _ bool) bool {
		found := endpoints(o, "vm-1")
		return found["10.244.1.11"] && !found["10.244.1.10"] && o.Pods[inTenant("vm-1b")] != nil && o.Pods[inTenant("vm-1")] == nil
	})
	t.Logf("caught up %v after the server was ready again, away for %v", time.Since(back).Round(time.Millisecond), away)
	require.NoError(t, connected(v, true))

	text := log.String()
	require.Equal(t, 1, strings.Count(text, "API server is away"), text)
	require.Equal(t, 1, strings.Count(text, "API server is back"), text)
	require.LessOrEqual(t, strings.Count(text, "\n"), 6, "an outage is no reason to chatter:\n%s", text)
}

// TestStartsBeforeTheServer starts an agent while there is no server at all.
func TestStartsBeforeTheServer(t *testing.T) {
	c := twoNodes(t)
	config := agentConfig(t, c)
	c.Kill(t)
	v := follow(t, config, nodeA, nil)
	testenv.Eventually(t, soon, "absence noticed", func() error { return connected(v, false) })
	v.see(func(o nat.Objects, complete bool) { require.False(t, complete) })
	c.Resume(t)
	v.eventually(t, 2*time.Second, "complete", func(o nat.Objects, complete bool) bool { return complete && len(o.Services) == 1 })
}

// connected returns nil when the source says what is wanted.
func connected(v *view, want bool) error {
	if is, why := v.source.Connected(); is != want {
		return fmt.Errorf("connected: %t (%s)", is, why)
	}
	return nil
}
