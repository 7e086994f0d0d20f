// SPDX-License-Identifier: Apache-2.0

// Package state keeps what has to be the same when the test API server starts
// again on its directory: keys, the admin's token, the port and the
// kubeconfig. It knows nothing of the servers that use them.
package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Names inside the directory.
const (
	// EtcdData is the data directory of etcd.
	EtcdData = "etcd"
	// EtcdLog receives what etcd says.
	EtcdLog = "etcd.log"
	// ServerLog receives what kube-apiserver and the controllers say.
	ServerLog = "kube-apiserver.log"

	lockFile       = "lock"
	portFile       = "port"
	tokenFile      = "token"
	tokensFile     = "tokens.csv"
	accountKeyFile = "service-account.key"
	kubeconfigFile = "admin.kubeconfig"
	certificateDir = "certificates"
)

const (
	// lockLimit is how long a start waits for a killed predecessor to be gone.
	lockLimit = 10 * time.Second
	lockPoll  = 20 * time.Millisecond
)

// ErrInUse says that another server runs on the directory.
var ErrInUse = errors.New("in use by another server")

// Dir is a locked state directory.
type Dir struct {
	path  string
	lock  *os.File
	token string
}

// Open makes the directory where it is absent, locks it, and fills in the
// keys that are missing.
func Open(ctx context.Context, path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	d := &Dir{path: path}
	if err := os.MkdirAll(d.Certificates(), 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	d.lock, err = lock(ctx, d.file(lockFile))
	if err != nil {
		return nil, fmt.Errorf("state directory %s: %w", path, err)
	}
	if err := d.ensureKeys(); err != nil {
		return nil, errors.Join(fmt.Errorf("state directory %s: %w", path, err), d.Close())
	}
	return d, nil
}

// Close releases the lock; the content stays.
func (d *Dir) Close() error { return d.lock.Close() }

// Path is the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// Certificates is where kube-apiserver keeps its serving certificate.
func (d *Dir) Certificates() string { return d.file(certificateDir) }

// Tokens is the path of kube-apiserver's token file.
func (d *Dir) Tokens() string { return d.file(tokensFile) }

// ServiceAccountKey is the path of the key that signs account tokens.
func (d *Dir) ServiceAccountKey() string { return d.file(accountKeyFile) }

// Kubeconfig is the path of the cluster administrator's kubeconfig.
func (d *Dir) Kubeconfig() string { return d.file(kubeconfigFile) }

// Log is the path of kube-apiserver's log.
func (d *Dir) Log() string { return d.file(ServerLog) }

func (d *Dir) file(name string) string { return filepath.Join(d.path, name) }

// lock takes an exclusive lock that the kernel drops when the process ends,
// however it ends.
func lock(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, lockLimit, ErrInUse)
	defer cancel()
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock: %w", err), f.Close())
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// writeFile replaces a file in one step, so that nobody reads half of it.
func writeFile(path string, content []byte) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, content, 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
