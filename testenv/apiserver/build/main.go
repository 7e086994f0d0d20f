// SPDX-License-Identifier: Apache-2.0

// Command build prints the path of a testapiserver binary. It compiles one
// only when the user's cache directory has none for the present sources,
// dependencies and Go version; the first time that takes minutes.
//
// It does NOT clean the cache: every directory in it may be deleted at any
// time. Run it inside the module:
//
//	go -C testenv/apiserver run ./build
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// cacheName is our directory in os.UserCacheDir.
	cacheName  = "natplane-testapiserver"
	binaryName = "testapiserver"
	// versionPackage holds what the server answers at /version.
	versionPackage = "k8s.io/component-base/version"
)

func main() {
	path, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
	fmt.Println(path)
}

func run() (string, error) {
	module, err := goOutput("", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	toolchain, err := goOutput(module, "env", "GOVERSION", "GOOS", "GOARCH", "GOFLAGS")
	if err != nil {
		return "", err
	}
	version, err := goOutput(module, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return "", err
	}
	args := buildArgs(version)
	key, err := cacheKey(os.DirFS(module), toolchain, strings.Join(args, " "))
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cache directory: %w", err)
	}
	root := filepath.Join(cache, cacheName)
	binary := filepath.Join(root, key, binaryName)
	if exists(binary) {
		return binary, nil
	}
	return binary, buildLocked(root, binary, func(out string) error {
		fmt.Fprintf(os.Stderr, "building testapiserver with Kubernetes %s: ten minutes of processor time the first time\n", version)
		start := time.Now()
		if err := compile(module, out, args); err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "built testapiserver in %s\n", time.Since(start).Round(time.Second))
		return nil
	})
}

// buildArgs are the arguments of go build, without -o. Version numbers are
// what a release build of Kubernetes sets.
func buildArgs(version string) []string {
	ldflags := []string{"-s", "-w", "-X", versionPackage + ".gitVersion=" + version}
	if part := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3); len(part) == 3 {
		ldflags = append(ldflags,
			"-X", versionPackage+".gitMajor="+part[0],
			"-X", versionPackage+".gitMinor="+part[1])
	}
	return []string{"build", "-buildvcs=false", "-ldflags", strings.Join(ldflags, " ")}
}

// buildLocked calls build unless another process has built the binary in the
// meantime. The binary appears whole or not at all.
func buildLocked(root, binary string, build func(out string) error) error {
	dir := filepath.Dir(binary)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("cache directory: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(root, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return fmt.Errorf("cache lock: %w", err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("cache lock: %w", err)
	}
	if exists(binary) {
		return nil
	}
	tmp, err := os.MkdirTemp(dir, "build")
	if err != nil {
		return fmt.Errorf("cache directory: %w", err)
	}
	defer os.RemoveAll(tmp)
	out := filepath.Join(tmp, binaryName)
	if err := build(out); err != nil {
		return err
	}
	if err := os.Rename(out, binary); err != nil {
		return fmt.Errorf("cache: %w", err)
	}
	return nil
}

func compile(module, out string, args []string) error {
	cmd := goCommand(module, append(args, "-o", out, ".")...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("go build: %w", err)
	}
	return nil
}

func goOutput(dir string, args ...string) (string, error) {
	out, err := goCommand(dir, args...).Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(string(exit.Stderr)))
	}
	if err != nil {
		return "", fmt.Errorf("go %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}

// goCommand fixes what would change the binary from one machine to another.
func goCommand(dir string, args ...string) *exec.Cmd {
	cmd := exec.Command("go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	return cmd
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
