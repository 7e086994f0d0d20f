// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"github.com/natplane/natplane/testenv/apiserver/internal/state"
)

// serve runs everything until ctx ends or one part fails. It stops in the
// reverse order of the start: controllers, API server, etcd.
func serve(ctx context.Context, cfg config, stdout io.Writer) (err error) {
	dir, err := state.Open(ctx, cfg.dir)
	if err != nil {
		return err
	}
	defer dir.Close()

	// Unix socket paths are limited to 108 bytes (man 7 unix), which a test's
	// temporary directory easily exceeds; relative to the directory they fit.
	if err := os.Chdir(dir.Path()); err != nil {
		return fmt.Errorf("enter state directory: %w", err)
	}
	logFile, err := os.OpenFile(state.ServerLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer logFile.Close()
	if err := logTo(logFile); err != nil {
		return err
	}
	defer klog.Flush()

	listener, err := dir.Listen(cfg.port)
	if err != nil {
		return err
	}
	defer listener.Close()

	etcd, err := startEtcd(ctx)
	if err != nil {
		return err
	}
	defer etcd.Close()

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		select {
		case err := <-etcd.Err():
			return fmt.Errorf("etcd: %w", err)
		case <-ctx.Done():
			return nil
		}
	})
	server, err := newAPIServer(ctx, dir, listener)
	if err != nil {
		return err
	}
	group.Go(func() error { return server.run(ctx) })
	group.Go(func() error {
		client, err := server.ready(ctx)
		if err != nil {
			return stoppedOr(ctx, err)
		}
		if err := startControllers(ctx, client, cfg.controllers); err != nil {
			return stoppedOr(ctx, err)
		}
		_, err = fmt.Fprintln(stdout, "ready", client.Host, dir.Kubeconfig())
		return err
	})
	return group.Wait()
}

// stoppedOr hides errors that are only the echo of a stop during the start.
func stoppedOr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}
