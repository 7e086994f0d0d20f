// SPDX-License-Identifier: Apache-2.0

package container

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// Image is an unpacked image.
type Image struct {
	// Root is the directory with its files.
	Root string
	// Config is what the image says about its process.
	Config struct {
		User       string
		Entrypoint []string
		Cmd        []string
		Env        []string
		WorkingDir string
	}
}

// Build builds an image from a Dockerfile with buildah, in a store that goes with the test.
func Build(tb testing.TB, context, dockerfile string) *Image {
	tb.Helper()
	testenv.RequireRoot(tb)
	testenv.RequireTool(tb, "buildah")
	const name = "under-test"
	dir := tb.TempDir()
	image := &Image{Root: filepath.Join(dir, "rootfs")}
	// The driver vfs copies files and works on every file system.
	store := []string{"--root", filepath.Join(dir, "store"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	buildah := func(args ...string) string {
		cmd := exec.Command("buildah", append(store, args...)...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		require.NoError(tb, err, "%s\n%s", cmd, &errs)
		return string(out)
	}
	buildah("build", "--quiet", "--output", "type=local,dest="+image.Root, "--tag", name, "--file", dockerfile, context)
	var inspected struct {
		OCIv1 struct {
			Config any `json:"config"`
		}
	}
	inspected.OCIv1.Config = &image.Config
	require.NoError(tb, json.Unmarshal([]byte(buildah("inspect", "--type", "image", name)), &inspected))
	return image
}

// command is what Kubernetes makes of the image's and the manifest's words: the manifest's command replaces both of the image's, its
// arguments replace the image's.
func (i *Image) command(command, args []string) ([]string, error) {
	if len(command) == 0 {
		command = i.Config.Entrypoint
		if len(args) == 0 {
			args = i.Config.Cmd
		}
	}
	all := append(append([]string{}, command...), args...)
	if len(all) == 0 {
		return nil, fmt.Errorf("neither the image nor the manifest says what to run")
	}
	return all, nil
}
