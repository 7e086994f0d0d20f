// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

// fleet is a number of machines that exist only in the API server, each with a Pod on node-a and a delegated Service.
type fleet struct {
	p *clusterPlane
	n int
	// changes counts what was changed.
	changes atomic.Int64
}

// fleetWriters write at a time; more would only queue on a small machine.
const fleetWriters = 16

func fleetName(i int) string { return fmt.Sprintf("fleet-%d", i) }

// fleetAddr is a machine's address; variants are other ones that it may have.
func fleetAddr(i, variant int) string {
	return fmt.Sprintf("10.244.%d.%d", 100+10*variant+i/200, i%200+1)
}

// fleetPublic is a Service's address, from the range for benchmarks (RFC 2544).
func fleetPublic(i, variant int) string {
	return fmt.Sprintf("198.%d.%d.%d", 18+variant, i/200, i%200+1)
}

// newFleet makes the objects, many at a time.
func (p *clusterPlane) newFleet(n int) *fleet {
	p.t.Helper()
	f := &fleet{p: p, n: n}
	p.kube.Namespace(p.t, tenantB)
	f.each(func(ctx context.Context, i int) error {
		if err := f.makePod(ctx, i, 0); err != nil {
			return err
		}
		no := false
		s := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: fleetName(i), Labels: map[string]string{kube.ProxyLabel: "natplane"},
				Annotations: map[string]string{nat.AnnotationWholeIP: fmt.Sprint(i%2 == 0)}},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, AllocateLoadBalancerNodePorts: &no, Selector: map[string]string{"app": fleetName(i)},
				Ports: []corev1.ServicePort{tcpPort("http", 80)},
			},
		}
		if _, err := p.kube.Core.Services(tenantB).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			return err
		}
		return f.assign(ctx, i, fleetPublic(i, 0))
	})
	return f
}

// each does something for every machine, and fails the test when one fails.
func (f *fleet) each(do func(context.Context, int) error) {
	f.p.t.Helper()
	group, ctx := errgroup.WithContext(f.p.t.Context())
	group.SetLimit(fleetWriters)
	for i := range f.n {
		group.Go(func() error {
			if err := do(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", fleetName(i), err)
			}
			return nil
		})
	}
	require.NoError(f.p.t, group.Wait())
}

func (f *fleet) makePod(ctx context.Context, i, variant int) error {
	pods := f.p.kube.Core.Pods(tenantB)
	pod, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fleetName(i), Labels: map[string]string{"app": fleetName(i)}},
		Spec:       corev1.PodSpec{NodeName: "node-a", Containers: []corev1.Container{{Name: "compute", Image: "virt-launcher"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	pod.Status.Phase, pod.Status.PodIP = corev1.PodRunning, fleetAddr(i, variant)
	pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}

// replacePod ends a machine and begins it with another address.
func (f *fleet) replacePod(ctx context.Context, i, variant int) error {
	now := int64(0)
	err := f.p.kube.Core.Pods(tenantB).Delete(ctx, fleetName(i), metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return f.makePod(ctx, i, variant)
}

// assign writes an address as a load-balancer controller does; "" takes it away.
func (f *fleet) assign(ctx context.Context, i int, addr string) error {
	list := "[]"
	if addr != "" {
		list = fmt.Sprintf(`[{"ip":%q}]`, addr)
	}
	return f.patch(ctx, i, fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":%s}}}`, list), "status")
}

// label delegates a Service to a proxy.
func (f *fleet) label(ctx context.Context, i int, proxy string) error {
	return f.patch(ctx, i, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, kube.ProxyLabel, proxy))
}

func (f *fleet) patch(ctx context.Context, i int, text string, sub ...string) error {
	_, err := f.p.kube.Core.Services(tenantB).Patch(ctx, fleetName(i), types.MergePatchType, []byte(text), metav1.PatchOptions{}, sub...)
	return err
}

// churn changes machines and Services at random until stop, each writer some of its own.
func (f *fleet) churn(writers int) (stop func()) {
	ctx, cancel := context.WithCancel(f.p.t.Context())
	group := errgroup.Group{}
	for w := range writers {
		group.Go(func() error {
			for ctx.Err() == nil {
				i := rand.IntN(f.n/writers)*writers + w
				var err error
				switch rand.IntN(6) {
				case 0:
					err = f.label(ctx, i, []string{"natplane", "somebody"}[rand.IntN(2)])
				case 1:
					err = f.assign(ctx, i, "")
				case 2, 3:
					err = f.assign(ctx, i, fleetPublic(i, rand.IntN(2)))
				default:
					err = f.replacePod(ctx, i, rand.IntN(2))
				}
				if err != nil && ctx.Err() == nil {
					return fmt.Errorf("%s: %w", fleetName(i), err)
				}
				f.changes.Add(1)
			}
			return nil
		})
	}
	return func() {
		f.p.t.Helper()
		cancel()
		require.NoError(f.p.t, group.Wait())
	}
}

// calm makes every machine and Service what it was at first.
func (f *fleet) calm() {
	f.p.t.Helper()
	f.each(func(ctx context.Context, i int) error {
		if err := f.replacePod(ctx, i, 0); err != nil {
			return err
		}
		if err := f.label(ctx, i, "natplane"); err != nil {
			return err
		}
		return f.assign(ctx, i, fleetPublic(i, 0))
	})
}

// settled waits until node-a translates every Service of the fleet to its machine, and nothing else of it.
func (f *fleet) settled(within time.Duration) {
	f.p.t.Helper()
	testenv.Eventually(f.p.t, within, "the fleet is translated", func() error {
		plan, err := f.p.agents["node-a"].agent.Plan(f.p.t.Context())
		if err != nil {
			return err
		}
		have := map[netip.Addr]netip.Addr{}
		for _, t := range plan.Translations {
			have[t.Public] = t.Backend
		}
		wrong := 0
		for i := range f.n {
			for variant := range 2 {
				backend, translated := have[netip.MustParseAddr(fleetPublic(i, variant))]
				if translated != (variant == 0) || translated && backend.String() != fleetAddr(i, 0) {
					wrong++
				}
			}
		}
		if wrong > 0 {
			return fmt.Errorf("%d of %d are not as they should be", wrong, f.n)
		}
		return nil
	})
}
