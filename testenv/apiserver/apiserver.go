// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/natplane/natplane/testenv/apiserver/internal/state"
)

const (
	// readyPoll is the time between two looks at /readyz.
	readyPoll = 50 * time.Millisecond
	// readyLimit is generous: the start takes seconds, but a busy CI machine
	// may give us a small share of one core.
	readyLimit = 3 * time.Minute
)

// apiServer is a configured kube-apiserver.
type apiServer struct {
	options options.CompletedOptions
	dir     *state.Dir
	address string
}

// apiServerFlags are those of kube-apiserver itself.
func apiServerFlags(dir *state.Dir) []string {
	return []string{
		"--etcd-servers=" + etcdEndpoint,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		// Endpoints of the kubernetes Service must not be loopback addresses,
		// so the server could not write its own.
		"--endpoint-reconciler-type=none",
		"--cert-dir=" + dir.Certificates(),
		"--authorization-mode=RBAC",
		"--token-auth-file=" + dir.Tokens(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file=" + dir.ServiceAccountKey(),
		"--service-account-key-file=" + dir.ServiceAccountKey(),
		// Both families, IPv4 first, as the clusters natplane is made for.
		"--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",
		"--allow-privileged=true",
		// ServiceAccount wants an account that no controller makes here.
		// TaintNodesByCondition marks nodes not-ready until a node controller
		// looks at them, which never happens.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
	}
}

func newAPIServer(ctx context.Context, dir *state.Dir, listener net.Listener) (*apiServer, error) {
	opts := options.NewServerRunOptions()
	fs := pflag.NewFlagSet("kube-apiserver", pflag.ContinueOnError)
	named := opts.Flags()
	for _, set := range named.FlagSets {
		fs.AddFlagSet(set)
	}
	if err := fs.Parse(apiServerFlags(dir)); err != nil {
		return nil, fmt.Errorf("kube-apiserver flags: %w", err)
	}
	opts.SecureServing.Listener = listener
	if err := opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set(); err != nil {
		return nil, fmt.Errorf("kube-apiserver feature gates: %w", err)
	}
	completed, err := opts.Complete(ctx)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver options: %w", err)
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, fmt.Errorf("kube-apiserver options: %w", utilerrors.NewAggregate(errs))
	}
	return &apiServer{options: completed, dir: dir, address: listener.Addr().String()}, nil
}

// run serves until ctx ends.
func (s *apiServer) run(ctx context.Context) error {
	if err := app.Run(ctx, s.options); err != nil {
		return fmt.Errorf("kube-apiserver: %w", err)
	}
	if ctx.Err() == nil {
		return fmt.Errorf("kube-apiserver stopped by itself, see %s", s.dir.Log())
	}
	return nil
}

// ready writes the admin kubeconfig and waits until the server serves what a
// test needs at once: RBAC bootstrapped and namespace "default" present.
func (s *apiServer) ready(ctx context.Context) (*rest.Config, error) {
	ca, err := os.ReadFile(s.options.SecureServing.ServerCert.CertKey.CertFile)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	cfg, err := s.dir.WriteKubeconfig("https://"+s.address, ca)
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1 // the controllers of one test need no limit
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("admin client: %w", err)
	}
	err = wait.PollUntilContextTimeout(ctx, readyPoll, readyLimit, true, func(ctx context.Context) (bool, error) {
		var code int
		client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).StatusCode(&code)
		if code != http.StatusOK {
			return false, nil
		}
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver not ready, see %s: %w", s.dir.Log(), err)
	}
	return cfg, nil
}
