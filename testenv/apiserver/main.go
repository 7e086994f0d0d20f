// SPDX-License-Identifier: Apache-2.0

// Command testapiserver is a Kubernetes control plane for tests: an embedded
// etcd, the real kube-apiserver and the real EndpointSlice controller in one
// process, listening on loopback only. Around them run the garbage collector
// and the namespace controller, so that deleting a Service or a namespace has
// the effect it has in a cluster.
//
// It does NOT run a scheduler, kubelets, kube-proxy or any other controller,
// and its data does not survive a crash of the machine: fsync is off.
//
//	testapiserver --dir DIR
//
// prints "ready URL KUBECONFIG" and serves until SIGTERM, until the pipe at
// its stdin is closed or until its parent process is gone.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/natplane/natplane/testenv/apiserver/internal/lifeline"
)

// shutdownLimit bounds a clean stop. Clients that keep connections open must
// not keep a test waiting longer than this.
const shutdownLimit = 15 * time.Second

// config is what the command line asks for.
type config struct {
	dir         string
	port        int
	controllers controllerConfig
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run returns the exit code: 0 stopped as asked, 1 failed, 2 wrong usage.
func run(args []string, stdout, stderr io.Writer) int {
	cfg, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintln(stderr, "testapiserver:", err)
		return 2
	}

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	ctx, err = lifeline.Watch(ctx, os.Stdin)
	if err != nil {
		fmt.Fprintln(stderr, "testapiserver:", err)
		return 1
	}
	context.AfterFunc(ctx, func() {
		time.AfterFunc(shutdownLimit, func() {
			fmt.Fprintln(stderr, "testapiserver: not stopped after", shutdownLimit)
			os.Exit(1)
		})
	})

	if err := serve(ctx, cfg, stdout); err != nil {
		fmt.Fprintln(stderr, "testapiserver:", err)
		return 1
	}
	return 0
}

func parse(args []string, stderr io.Writer) (config, error) {
	var (
		cfg         config
		controllers string
	)
	fs := flag.NewFlagSet("testapiserver", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&cfg.dir, "dir", "", "directory for state, keys, logs and admin.kubeconfig; made if absent (required)")
	fs.IntVar(&cfg.port, "port", 0, "port on 127.0.0.1; 0: the one the directory had before, else a free one")
	fs.StringVar(&controllers, "controllers", strings.Join(controllerNames(), ","), "controllers to run, comma separated; empty for none")
	fs.IntVar(&cfg.controllers.maxEndpointsPerSlice, "max-endpoints-per-slice", 100, "endpoints in one EndpointSlice; a small number gives Services of several slices")
	if err := fs.Parse(args); err != nil {
		return config{}, err
	}
	if fs.NArg() > 0 {
		return config{}, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if cfg.dir == "" {
		return config{}, errors.New("--dir is required")
	}
	if controllers != "" {
		cfg.controllers.names = strings.Split(controllers, ",")
	}
	return cfg, cfg.controllers.validate()
}
