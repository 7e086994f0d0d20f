// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
)

// limit is how soon a change of a file must be there.
const limit = 200 * time.Millisecond

// patience is how long a test waits for what has no such limit.
const patience = 5 * time.Second

const examples = "../../deploy/examples"

func service(name, ip string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: tenant-a}\nspec: {loadBalancerIP: %s}\n", name, ip)
}

func key(name string) nat.Key { return nat.Key{Namespace: "tenant-a", Name: name} }

func write(t testing.TB, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
}

// replace writes a file the way careful programs do: aside, then renamed.
func replace(t testing.TB, path, text string) {
	t.Helper()
	aside := filepath.Join(filepath.Dir(path), ".aside")
	write(t, aside, text)
	require.NoError(t, os.Rename(aside, path))
}

// followed is a running source and the objects that its batches add up to.
type followed struct {
	*manifests.Source
	dir      string
	services map[nat.Key]string // loadBalancerIP by name
	batches  []nat.Objects
	complete bool
}

func follow(t testing.TB, dir string) *followed {
	t.Helper()
	src, err := manifests.Open(dir, nil)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		src.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &followed{Source: src, dir: dir, services: map[nat.Key]string{}}
}

// start follows a directory that exists and takes the first batch.
func start(t testing.TB, dir string) *followed {
	t.Helper()
	f := follow(t, dir)
	f.until(t, patience, func() bool { return f.complete })
	return f
}

func (f *followed) take() {
	batch, complete := f.Take()
	f.complete = complete
	if batch.Len() > 0 {
		f.batches = append(f.batches, batch)
	}
	for k, svc := range batch.Services {
		if svc == nil {
			delete(f.services, k)
			continue
		}
		f.services[k] = svc.Spec.LoadBalancerIP
	}
}

// until takes what is signalled until the condition holds, and returns how long that took.
func (f *followed) until(t testing.TB, limit time.Duration, condition func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	deadline := time.After(limit)
	for !condition() {
		select {
		case <-f.Changed():
			f.take()
		case <-deadline:
			require.FailNow(t, "not in time", "limit %v, services %v, problems %v", limit, f.services, f.Problems())
		}
	}
	return time.Since(begin)
}

// untilServices waits for exactly these services.
func (f *followed) untilServices(t testing.TB, limit time.Duration, want map[string]string) time.Duration {
	t.Helper()
	return f.until(t, limit, func() bool {
		if len(f.services) != len(want) {
			return false
		}
		for name, ip := range want {
			if got, there := f.services[key(name)]; !there || got != ip {
				return false
			}
		}
		return true
	})
}

// still fails when an object or a problem changes in a time that is longer than the source needs to notice. One signal may still be on
// its way: what it is about can be seen before it.
func (f *followed) still(t testing.TB, d time.Duration) {
	t.Helper()
	before, end, signals := f.Problems(), time.After(d), 0
	for {
		select {
		case <-f.Changed():
			signals++
			batch, _ := f.Take()
			if signals > 1 || batch.Len() > 0 || !slices.Equal(before, f.Problems()) {
				require.FailNow(t, "changed", "%d objects, problems %v", batch.Len(), f.Problems())
			}
		case <-end:
			return
		}
	}
}

func texts(problems []manifests.Problem) []string {
	var all []string
	for _, p := range problems {
		all = append(all, p.String())
	}
	return all
}
