// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typeddiscoveryv1 "k8s.io/client-go/kubernetes/typed/discovery/v1"
	"k8s.io/client-go/rest"
)

const (
	// dialTimeout bounds one attempt to connect; a server that dropped off the network must not hold an attempt for the kernel's minutes.
	dialTimeout = 3 * time.Second
	keepAlive   = 15 * time.Second

	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
)

// clients speak to one API server over one connection pool. Only the groups that are read are linked in: the full clientset would triple
// the binary.
type clients struct {
	core      typedcorev1.CoreV1Interface
	discovery typeddiscoveryv1.DiscoveryV1Interface
	dynamic   dynamic.Interface
}

func newClients(config *rest.Config, g *gate, log *slog.Logger) (*clients, error) {
	config = rest.CopyConfig(config)
	// A limit here would delay five watches of one node behind each other; what writes has a limit of its own.
	config.QPS = -1
	config.WarningHandlerWithContext = warnings{log}
	if config.UserAgent == "" {
		config.UserAgent = "natplane"
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}).DialContext
	}
	config.Wrap(g.wrap)
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	typed := rest.CopyConfig(config)
	typed.ContentType = protobufType
	typed.AcceptContentTypes = protobufType + "," + jsonType
	core, err := typedcorev1.NewForConfigAndClient(typed, client)
	if err != nil {
		return nil, err
	}
	discovery, err := typeddiscoveryv1.NewForConfigAndClient(typed, client)
	if err != nil {
		return nil, err
	}
	custom, err := dynamic.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return &clients{core: core, discovery: discovery, dynamic: custom}, nil
}

// warnings puts the API server's warnings (deprecations) into our log, where they hurt nobody.
type warnings struct{ log *slog.Logger }

func (w warnings) HandleWarningHeaderWithContext(ctx context.Context, code int, _ string, text string) {
	w.log.DebugContext(ctx, "warning of the API server", "code", code, "text", text)
}

// ServerAddresses returns the address of the API server when the configuration names it by address, as it does in a Pod. It must never
// become public (R7).
func ServerAddresses(config *rest.Config) []netip.Addr {
	host := config.Host
	if u, err := url.Parse(host); err == nil && u.Host != "" {
		host = u.Host
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	addr, err := netip.ParseAddr(strings.Trim(host, "[]"))
	if err != nil {
		return nil
	}
	return []netip.Addr{addr.Unmap()}
}
