// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/natplane/natplane/nat"
)

const (
	// workers write at a time; one slow write must not hold all others.
	workers = 2
	// writesPerSecond and writesBurst bound one node's writes. After a first start of a large cluster, statuses may take minutes; packets
	// do not wait for them.
	writesPerSecond = 20
	writesBurst     = 40
	// spacing is the least time between two writes to one Service: one that flaps is described once per second.
	spacing = time.Second
	// doubt is how long bad news waits: the slices of the two families, or a Service and its Pod, come one after the other, and what holds
	// only in between is not worth a write and an Event.
	doubt = 300 * time.Millisecond
	// repairDelay is how long a condition that someone else changed stays: two nodes that hand over the role of the reporter need a
	// moment to agree, and must not correct each other meanwhile.
	repairDelay = 3 * time.Second
	// retryMin and retryMax are the delays after a failed write.
	retryMin = 250 * time.Millisecond
	retryMax = 10 * time.Second
	// writeTimeout bounds one write, waiting for an API server that is away included.
	writeTimeout = 30 * time.Second
)

// Services knows the Services as the API server last showed them; false for one that it does not show.
type Services interface {
	Observed(key nat.Key) (Observed, bool)
}

// Options are what a Reporter is made of.
type Options struct {
	Client   typedcorev1.CoreV1Interface
	Services Services
	// Node is the name of this node; verdicts that name another reporter are not written.
	Node string
	Log  *slog.Logger
}

// Reporter writes verdicts to Services. Its methods may be called from any goroutine.
type Reporter struct {
	client   typedcorev1.CoreV1Interface
	events   announcer
	services Services
	node     string
	log      *slog.Logger
	queue    queue
	limit    flowcontrol.RateLimiter

	mu    sync.Mutex
	tasks map[nat.Key]*task
	// failing is true from a failed write to the next that succeeds, so that one log line stands for a series.
	failing bool
}

// task is what this node has to say about a Service.
type task struct {
	// verdict is nil when the conditions have to go.
	verdict *nat.Verdict
	// have is the latest state that is known, seen or written.
	have Observed
	// wrote is when this node last wrote, and said what.
	wrote time.Time
	said  []metav1.Condition
}

// New returns a Reporter that writes once Run is called.
func New(o Options) *Reporter {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Reporter{
		client:   o.Client,
		events:   announcer{o.Client, o.Node},
		services: o.Services,
		node:     o.Node,
		log:      log,
		queue:    newQueue(),
		limit:    flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writesBurst),
		tasks:    map[nat.Key]*task{},
	}
}

// Report notes new verdicts and Services that are no longer ours. A Service whose reporter is another node by now is forgotten: that node
// overwrites what was written here.
func (r *Reporter) Report(changed []nat.Verdict, gone []nat.Key) {
	var due, doubtful []nat.Key
	r.mu.Lock()
	for _, v := range changed {
		if v.Kind != nat.KindService {
			continue // the writer of EgressShard status takes them from here
		}
		key := v.Key()
		if v.Reporter != r.node {
			delete(r.tasks, key)
			continue
		}
		t := r.tasks[key]
		if t == nil {
			// Kept from the start, for a Service that loses its label before its turn comes.
			seen, _ := r.services.Observed(key)
			t = &task{have: seen}
			r.tasks[key] = t
		}
		t.verdict = &v
		if v.Programmed {
			due = append(due, key)
		} else {
			doubtful = append(doubtful, key)
		}
	}
	for _, key := range gone {
		if t := r.tasks[key]; t != nil {
			t.verdict = nil
			due = append(due, key)
		}
	}
	r.mu.Unlock()
	for _, key := range due {
		r.queue.Add(key)
	}
	for _, key := range doubtful {
		r.queue.AddAfter(key, doubt)
	}
}

// Observe tells that the conditions of a Service changed, or that another Service has its name now. What is not as it should be is put
// right after a while.
func (r *Reporter) Observe(key nat.Key) {
	r.mu.Lock()
	_, ours := r.tasks[key]
	r.mu.Unlock()
	if ours {
		r.queue.AddAfter(key, repairDelay)
	}
}

// Run writes until ctx ends; what is not written then is written by the next agent.
func (r *Reporter) Run(ctx context.Context) {
	r.queue.run(ctx, workers, r.settle, func(err error) {
		if err != nil {
			r.failed(err)
		}
	})
}

func (r *Reporter) failed(err error) {
	r.mu.Lock()
	first := !r.failing
	r.failing = true
	r.mu.Unlock()
	if first {
		r.log.Warn("status cannot be written", "error", err)
	}
}

func (r *Reporter) succeeded() {
	r.mu.Lock()
	recovered := r.failing
	r.failing = false
	r.mu.Unlock()
	if recovered {
		r.log.Info("status is written again")
	}
}
