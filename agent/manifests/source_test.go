// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent/manifests"
)

func TestSourceFirstBatchHoldsAll(t *testing.T) {
	f := start(t, examples)
	require.Len(t, f.batches, 1)
	require.Equal(t, 14, f.batches[0].Len())
	require.Empty(t, f.Problems())
	f.still(t, 2*limit)
}

func TestSourceEmptyDirectoryIsComplete(t *testing.T) {
	f := start(t, t.TempDir())
	require.Empty(t, f.batches)
}

func TestSourceOfAFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	write(t, path, "")
	_, err := manifests.Open(path, nil)
	require.ErrorContains(t, err, "not a directory")
}

func TestSourceFollowsFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	f := start(t, dir)

	steps := []struct {
		name string
		do   func()
		want map[string]string
	}{
		{"created", func() { write(t, a, service("web", "203.0.113.1")) }, map[string]string{"web": "203.0.113.1"}},
		{"written in place, longer", func() { write(t, a, service("web", "203.0.113.10")) }, map[string]string{"web": "203.0.113.10"}},
		{"written in place, as long", func() { write(t, a, service("web", "203.0.113.11")) }, map[string]string{"web": "203.0.113.11"}},
		{"written in place, shorter", func() { write(t, a, service("web", "203.0.113.2")) }, map[string]string{"web": "203.0.113.2"}},
		{"replaced", func() { replace(t, a, service("web", "203.0.113.3")) }, map[string]string{"web": "203.0.113.3"}},
		{"second file", func() { replace(t, b, service("mail", "203.0.113.9")) }, map[string]string{"web": "203.0.113.3", "mail": "203.0.113.9"}},
		{"emptied", func() { write(t, b, "") }, map[string]string{"web": "203.0.113.3"}},
		{"renamed", func() { require.NoError(t, os.Rename(a, b)) }, map[string]string{"web": "203.0.113.3"}},
		{"removed", func() { require.NoError(t, os.Remove(b)) }, map[string]string{}},
	}
	for _, step := range steps {
		step.do()
		took := f.untilServices(t, limit, step.want)
		t.Logf("%s: %v", step.name, took.Round(100*time.Microsecond))
		require.Empty(t, f.Problems())
	}
}

func TestSourceSendsOnlyWhatChanged(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "all.yaml")
	text := service("a", "203.0.113.1") + "---\n" + service("b", "203.0.113.2") + "---\n" + service("c", "203.0.113.3")
	write(t, path, text)
	f := start(t, dir)
	f.batches = nil

	replace(t, path, strings.Replace(text, "203.0.113.2", "203.0.113.20", 1))
	f.untilServices(t, limit, map[string]string{"a": "203.0.113.1", "b": "203.0.113.20", "c": "203.0.113.3"})
	require.Len(t, f.batches, 1)
	require.Equal(t, 1, f.batches[0].Len())

	// Comments, order and style are no changes.
	replace(t, path, "# new\n"+service("c", `"203.0.113.3"`)+"---\n"+service("b", "203.0.113.20")+"---\n"+service("a", "203.0.113.1"))
	f.still(t, 2*limit)
}

func TestSourceCoalesces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	f := start(t, dir)
	for i := range 10 {
		replace(t, path, service("web", fmt.Sprintf("203.0.113.%d", i)))
		<-f.Changed()
	}
	write(t, filepath.Join(dir, "b.yaml"), service("gone", "203.0.113.99"))
	<-f.Changed()
	require.NoError(t, os.Remove(filepath.Join(dir, "b.yaml")))
	<-f.Changed()
	f.take()
	require.Len(t, f.batches, 1)
	batch := f.batches[0]
	require.Equal(t, "203.0.113.9", batch.Services[key("web")].Spec.LoadBalancerIP)
	require.Contains(t, batch.Services, key("gone"))
	require.Nil(t, batch.Services[key("gone")])
	require.Len(t, batch.Services, 2)
	again, _ := f.Take()
	require.Zero(t, again.Len())
}

func TestSourceKeepsWhatIsBroken(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	two := func(a, b string) string { return service("a", a) + "---\n" + service("b", b) }
	write(t, path, two("203.0.113.1", "203.0.113.2"))
	f := start(t, dir)

	broken := func(want string) {
		t.Helper()
		f.until(t, limit, func() bool {
			problems := f.Problems()
			return len(problems) == 1 && strings.Contains(problems[0].Message, want)
		})
	}
	// One document is of a wrong type: its object stays, the other one changes.
	replace(t, path, two("203.0.113.10", "{x: y}"))
	broken("; its last good version stays in force")
	f.untilServices(t, limit, map[string]string{"a": "203.0.113.10", "b": "203.0.113.2"})
	require.Equal(t, "Service tenant-a/b", f.Problems()[0].Object)

	// Still broken in another way, and the kept version is still there.
	replace(t, path, two("203.0.113.11", "[z]"))
	f.untilServices(t, limit, map[string]string{"a": "203.0.113.11", "b": "203.0.113.2"})

	// A document that might be any object: nothing is removed, the readable one changes.
	replace(t, path, service("a", "203.0.113.12")+"---\n{{ template }}: [\n")
	broken("no object of this file is removed")
	f.untilServices(t, limit, map[string]string{"a": "203.0.113.12", "b": "203.0.113.2"})

	// Nothing can be read at all.
	replace(t, path, "---nonsense\n")
	broken("; its last good content stays in force")
	f.still(t, limit)
	require.Len(t, f.services, 2)

	// Healed, and what is left out now is removed.
	replace(t, path, service("b", "203.0.113.20"))
	f.untilServices(t, limit, map[string]string{"b": "203.0.113.20"})
	require.Empty(t, f.Problems())
}

func TestSourceHalfWrittenFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	whole := service("a", "203.0.113.1") + "---\n" + service("b", "203.0.113.2")
	write(t, path, whole)
	f := start(t, dir)

	// The truncated file is a good one by itself: that b is missing must not be believed while the writer may be at work.
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, file.Close()) })
	half := len(service("a", "203.0.113.1"))
	_, err = file.WriteString(whole[:half])
	require.NoError(t, err)
	f.still(t, 40*time.Millisecond)
	_, err = file.WriteString(whole[half:] + "---\n" + service("c", "203.0.113.3"))
	require.NoError(t, err)
	f.untilServices(t, limit, map[string]string{"a": "203.0.113.1", "b": "203.0.113.2", "c": "203.0.113.3"})
	for _, batch := range f.batches[1:] {
		require.NotContains(t, batch.Services, key("b"))
	}
}

func TestSourceSameObjectInTwoFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	write(t, b, service("web", "203.0.113.2"))
	f := start(t, dir)
	write(t, a, service("web", "203.0.113.1"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.1"})
	require.Len(t, f.Problems(), 1)
	require.Equal(t, b, f.Problems()[0].File)
	require.NoError(t, os.Remove(a))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.2"})
	require.Empty(t, f.Problems())
}
