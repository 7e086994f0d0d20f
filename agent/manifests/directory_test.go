// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ConfigMap volume is links to files behind one link that is swapped for all of them at once.
func TestSourceConfigMapVolume(t *testing.T) {
	dir := t.TempDir()
	version := func(name, web, mail string) {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "web.yaml"), service("web", web))
		write(t, filepath.Join(dir, name, "mail.yaml"), service("mail", mail))
		require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..1", "203.0.113.1", "203.0.113.2")
	for _, name := range []string{"web.yaml", "mail.yaml"} {
		require.NoError(t, os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)))
	}
	f := start(t, dir)
	require.Len(t, f.services, 2)
	f.batches = nil

	version("..2", "203.0.113.3", "203.0.113.4")
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.3", "mail": "203.0.113.4"})
	require.Len(t, f.batches, 1, "one swap is one batch")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "..1")))

	// The swap to a version without one of the files leaves a dangling link behind for a moment.
	require.NoError(t, os.Remove(filepath.Join(dir, "..2", "mail.yaml")))
	write(t, filepath.Join(dir, "web2.yaml"), service("third", "203.0.113.5"))
	f.until(t, limit, func() bool { return len(f.Problems()) == 1 && len(f.services) == 3 })
	require.NoError(t, os.Remove(filepath.Join(dir, "mail.yaml")))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.3", "third": "203.0.113.5"})
	require.Empty(t, f.Problems())
}

func TestSourceDirectoryAppearsLater(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "later")
	f := follow(t, dir)
	f.until(t, limit, func() bool { return len(f.Problems()) == 1 })
	f.take()
	require.False(t, f.complete, "nothing is known before the directory is there")

	require.NoError(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "a.yaml"), service("web", "203.0.113.1"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.1"})
	require.True(t, f.complete)
	require.Empty(t, f.Problems())
}

func TestSourceDirectoryReplaced(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.Mkdir(dir, 0o700))
	path := filepath.Join(dir, "a.yaml")
	write(t, path, service("web", "203.0.113.1"))
	f := start(t, dir)

	// Away: the objects stay.
	require.NoError(t, os.Rename(dir, dir+".old"))
	f.until(t, limit, func() bool { return len(f.Problems()) == 1 })
	require.Contains(t, f.Problems()[0].String(), "its last good content stays in force")
	require.Len(t, f.services, 1)

	// Back unchanged: only the problem goes.
	require.NoError(t, os.Rename(dir+".old", dir))
	f.until(t, limit, func() bool { return len(f.Problems()) == 0 })
	require.Len(t, f.services, 1)

	// Removed and made anew, and followed from then on.
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	write(t, path, service("web", "203.0.113.2"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.2"})
	write(t, path, service("web", "203.0.113.3"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.3"})
}

func TestSourceDirectoryBehindALink(t *testing.T) {
	base := t.TempDir()
	one, link := filepath.Join(base, "one"), filepath.Join(base, "link")
	require.NoError(t, os.Mkdir(one, 0o700))
	require.NoError(t, os.Symlink("one", link))
	f := start(t, link)
	write(t, filepath.Join(one, "a.yaml"), service("web", "203.0.113.1"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.1"})

	// A link that is pointed elsewhere gives no event in the directory itself, and must not wait for the fallback.
	two := filepath.Join(base, "two")
	require.NoError(t, os.Mkdir(two, 0o700))
	write(t, filepath.Join(two, "a.yaml"), service("web", "203.0.113.2"))
	require.NoError(t, os.Symlink("two", filepath.Join(base, "tmp")))
	require.NoError(t, os.Rename(filepath.Join(base, "tmp"), link))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.2"})
	write(t, filepath.Join(two, "a.yaml"), service("web", "203.0.113.3"))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.3"})

	// Removed, and made again.
	require.NoError(t, os.Remove(link))
	f.until(t, limit, func() bool { return len(f.Problems()) == 1 })
	require.NoError(t, os.Symlink("one", link))
	f.untilServices(t, limit, map[string]string{"web": "203.0.113.1"})
}

func TestSourceOddFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600))
	write(t, filepath.Join(dir, "web.yaml"), service("web", "203.0.113.1"))
	f := start(t, dir)
	require.Len(t, f.services, 1, "a pipe must not block the others")
	require.Len(t, f.Problems(), 1)
	require.Equal(t, filepath.Join(dir, "pipe.yaml")+": not a regular file", f.Problems()[0].String())
}
