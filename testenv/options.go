// SPDX-License-Identifier: Apache-2.0

package testenv

// Option changes the standard topology.
type Option func(*options)

type options struct {
	rpFilter      string
	podRoutes     bool
	bridge        bool
	bridgedOnLink bool
}

func newOptions(opts []Option) options {
	o := options{rpFilter: "0", podRoutes: true}
	for _, set := range opts {
		set(&o)
	}
	return o
}

// WithRPFilter sets rp_filter on the nodes: "0" (the default), "1" for strict,
// "2" for loose.
func WithRPFilter(value string) Option { return func(o *options) { o.rpFilter = value } }

// WithRouterPodRoutes says whether the router knows the pod ranges of the
// nodes. By default it does: then a packet that leaks with a private source is
// answered, and only a capture shows the leak.
func WithRouterPodRoutes(on bool) Option { return func(o *options) { o.podRoutes = on } }

// WithBridge puts the machines of each node behind one interface, br0, a
// bridge. They still reach each other through the node only.
func WithBridge() Option { return func(o *options) { o.bridge = true } }

// WithOnLinkBridge is WithBridge with the whole pod range on the link of the
// machines, which answer each other without the node.
func WithOnLinkBridge() Option {
	return func(o *options) { o.bridge, o.bridgedOnLink = true, true }
}
