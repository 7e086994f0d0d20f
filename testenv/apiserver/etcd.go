// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/natplane/natplane/testenv/apiserver/internal/state"
)

// etcdEndpoint is a socket in the state directory, the working directory of
// the process: etcd has no authentication, the directory's mode protects it.
const etcdEndpoint = "unix://etcd.sock"

// startEtcd opens or makes the store and waits until it serves.
func startEtcd(ctx context.Context) (*embed.Etcd, error) {
	client := url.URL{Scheme: "unix", Host: "etcd.sock"}
	peer := url.URL{Scheme: "unix", Host: "peer.sock"}

	cfg := embed.NewConfig()
	cfg.Name = "testapiserver"
	cfg.Dir = state.EtcdData
	cfg.LogOutputs = []string{state.EtcdLog}
	cfg.LogLevel = "warn"
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ListenPeerUrls = []url.URL{peer}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.EnableGRPCGateway = false
	// What the process wrote survives its death in the page cache; only a
	// crash of the machine loses it, and then the test is lost anyway.
	cfg.UnsafeNoFsync = true

	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return etcd, nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	etcd.Close()
	return nil, fmt.Errorf("start etcd: %w", err)
}
