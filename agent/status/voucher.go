// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/natplane/natplane/nat"
)

// vouchesPerSecond and vouchesBurst bound one node's vouches apart from its reports: other nodes' packets wait for these.
const (
	vouchesPerSecond = 50
	vouchesBurst     = 100
)

// maxManager is the longest name of a field manager that the API takes, in bytes.
const maxManager = 128

// A Voucher keeps the condition by which this node vouches for the endpoints of a Service under externalTrafficPolicy Cluster (see package
// nat). Each node has a condition and a field manager of its own, so that nobody else speaks for it, and it withdraws its word whoever reports
// on the Service. Its methods may be called from any goroutine.
type Voucher struct {
	client   typedcorev1.CoreV1Interface
	services Services
	node     string
	log      *slog.Logger
	queue    queue
	limit    flowcontrol.RateLimiter

	mu    sync.Mutex
	words map[nat.Key]word
}

// word is what this node has to say about a Service.
type word struct {
	// message is that of the condition; empty when there must be none.
	message string
	// have is the latest state that is known, seen or written.
	have Observed
}

// NewVoucher returns a Voucher that writes once Run is called.
func NewVoucher(o Options) *Voucher {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Voucher{
		client: o.Client, services: o.Services, node: o.Node, log: log,
		queue: newQueue(),
		limit: flowcontrol.NewTokenBucketRateLimiter(vouchesPerSecond, vouchesBurst),
		words: map[nat.Key]word{},
	}
}

// Report notes what new verdicts vouch for, and Services that are no longer ours.
func (v *Voucher) Report(changed []nat.Verdict, gone []nat.Key) {
	for _, verdict := range changed {
		if verdict.Kind == nat.KindService {
			v.note(verdict.Key(), nat.VouchMessage(verdict.Verified))
		}
	}
	for _, key := range gone {
		v.note(key, "")
	}
}

// note puts a Service into the queue unless there is, and was, nothing to say about it.
func (v *Voucher) note(key nat.Key, message string) {
	seen, shown := v.services.Observed(key)
	v.mu.Lock()
	w, known := v.words[key]
	if shown {
		w.have = later(seen, w.have)
	}
	due := known || message != "" || v.said(w.have) != ""
	if due {
		w.message = message
		v.words[key] = w
	}
	v.mu.Unlock()
	if due {
		v.queue.Add(key)
	}
}

// Observe tells that the conditions of a Service changed, or that another Service has its name now. What this node did not say itself is put
// right after a while.
func (v *Voucher) Observe(key nat.Key) {
	seen, _ := v.services.Observed(key)
	v.mu.Lock()
	w, known := v.words[key]
	v.mu.Unlock()
	if (known || v.said(seen) != "") && v.said(seen) != w.message {
		v.queue.AddAfter(key, repairDelay)
	}
}

// said is what this node vouches for on a Service, in the words of the condition.
func (v *Voucher) said(o Observed) string {
	if c := find(o.Vouches, nat.VouchPrefix+v.node); c != nil {
		return c.Message
	}
	return ""
}

// Run writes until ctx ends. What was said by then stands while no agent runs, as translation does.
func (v *Voucher) Run(ctx context.Context) {
	v.queue.run(ctx, workers, v.settle, func(err error) {
		if err != nil {
			v.log.Debug("endpoints cannot be vouched for", "error", err) // the Reporter says that writing fails
		}
	})
}

// settle makes the Service say what it should. It returns after which delay to look again, or 0.
func (v *Voucher) settle(ctx context.Context, key nat.Key) (time.Duration, error) {
	seen, shown := v.services.Observed(key)
	v.mu.Lock()
	w := v.words[key]
	v.mu.Unlock()
	if shown {
		w.have = later(seen, w.have)
	}
	if w.have.UID == "" || v.said(w.have) == w.message {
		v.settled(key, w.message, w.have)
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := v.limit.Wait(ctx); err != nil {
		return 0, fmt.Errorf("vouch for Service %s: %w", key, err)
	}
	after, err := apply(ctx, v.client, key, w.have.UID, v.manager(), v.condition(w))
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// Gone, or another one of its name, of which the source tells sooner or later.
		v.settled(key, w.message, Observed{})
		return repairDelay, nil
	case err != nil:
		return 0, fmt.Errorf("vouch for Service %s: %w", key, err)
	}
	v.log.Debug("vouched", "service", key.String(), "addresses", w.message)
	v.settled(key, w.message, after)
	return 0, nil
}

// settled notes the state that was found or made, and forgets a Service that nothing has to be said about, unless that changed meanwhile.
func (v *Voucher) settled(key nat.Key, message string, have Observed) {
	v.mu.Lock()
	defer v.mu.Unlock()
	w, known := v.words[key]
	switch {
	case !known:
	case w.message == "" && message == "":
		delete(v.words, key)
	default:
		w.have = have
		v.words[key] = w
	}
}

// condition is empty when there is nothing to vouch for.
func (v *Voucher) condition(w word) []metav1.Condition {
	if w.message == "" {
		return nil
	}
	name := nat.VouchPrefix + v.node
	c := metav1.Condition{
		Type: name, Status: metav1.ConditionTrue, Reason: nat.ReasonPodFound, Message: w.message,
		LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second)),
	}
	if old := find(w.have.Vouches, name); old != nil {
		c.LastTransitionTime = old.LastTransitionTime
	}
	return []metav1.Condition{c}
}

// manager is the field manager of this node's vouches.
func (v *Voucher) manager() string {
	name := FieldManager + ":" + v.node
	if len(name) <= maxManager {
		return name
	}
	sum := fnv.New64a()
	_, _ = sum.Write([]byte(name)) // a hash takes everything
	return fmt.Sprintf("%s:%016x", name[:maxManager-17], sum.Sum64())
}

// vouches returns the conditions of all nodes' Vouchers, sorted by type.
func vouches(conditions []metav1.Condition) []metav1.Condition {
	return pick(conditions, func(c metav1.Condition) bool { return strings.HasPrefix(c.Type, nat.VouchPrefix) })
}

// Kept are the conditions of a Service that anything here or in package nat reads.
func Kept(s *corev1.Service) []metav1.Condition {
	return append(Ours(s.Status.Conditions), vouches(s.Status.Conditions)...)
}
