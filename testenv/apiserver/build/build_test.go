// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestCacheKeyFollowsInputs(t *testing.T) {
	module := fstest.MapFS{
		"go.mod":               {Data: []byte("module m")},
		"go.sum":               {Data: []byte("sum")},
		"main.go":              {Data: []byte("package main")},
		"internal/a/a.go":      {Data: []byte("package a")},
		"internal/a/a_test.go": {Data: []byte("package a")},
		"build/main.go":        {Data: []byte("package main")},
		"README.md":            {Data: []byte("text")},
	}
	key := func(m fs.FS, settings ...string) string {
		k, err := cacheKey(m, settings...)
		require.NoError(t, err)
		require.Len(t, k, keyLength)
		return k
	}
	base := key(module, "go1")
	require.Equal(t, base, key(module, "go1"))
	require.NotEqual(t, base, key(module, "go2"))

	for name, matters := range map[string]bool{
		"go.mod": true, "go.sum": true, "main.go": true, "internal/a/a.go": true, "new.go": true,
		"internal/a/a_test.go": false, "build/main.go": false, "check/x_test.go": false, "README.md": false,
	} {
		changed := maps.Clone(module)
		changed[name] = &fstest.MapFile{Data: []byte("changed")}
		require.Equal(t, matters, base != key(changed, "go1"), name)
	}
}

func TestBuildArgsCarryVersion(t *testing.T) {
	require.Equal(t, []string{"build", "-buildvcs=false", "-ldflags",
		"-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2" +
			" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"},
		buildArgs("v1.37.2"))
}

func TestBuildLockedBuildsOnceAndWhole(t *testing.T) {
	root := t.TempDir()
	binary := filepath.Join(root, "key", binaryName)
	broken := errors.New("broken")
	builds := 0
	build := func(result error) func(string) error {
		return func(out string) error {
			builds++
			require.NoError(t, os.WriteFile(out, []byte("binary"), 0o700))
			return result
		}
	}
	require.ErrorIs(t, buildLocked(root, binary, build(broken)), broken)
	require.NoFileExists(t, binary)
	require.NoError(t, buildLocked(root, binary, build(nil)))
	require.FileExists(t, binary)
	require.NoError(t, buildLocked(root, binary, build(nil)))
	require.Equal(t, 2, builds)

	left, err := os.ReadDir(filepath.Dir(binary))
	require.NoError(t, err)
	require.Len(t, left, 1, "no temporary directory stays")
}
