// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/natplane/natplane/nat"
)

// FieldManager owns the conditions of verdicts, whichever node wrote them.
const FieldManager = "natplane"

// settle makes the Service say what it should. It returns after which delay to look again, or 0.
func (r *Reporter) settle(ctx context.Context, key nat.Key) (time.Duration, error) {
	t, ok := r.task(key)
	if !ok {
		return 0, nil
	}
	want := []metav1.Condition{}
	if t.verdict != nil {
		if t.have.UID == "" {
			return 0, nil // not shown, so deleted; word of that is on its way
		}
		want = conditions(*t.verdict, t.have.Conditions, time.Now())
	}
	if sameConditions(t.have.Conditions, want) || t.knownBetter() {
		r.settled(key, t, t.have, t.wrote)
		return 0, nil
	}
	if early := spacing - time.Since(t.wrote); early > 0 {
		return early, nil
	}
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	if err := r.limit.Wait(ctx); err != nil {
		return 0, fmt.Errorf("status of Service %s: %w", key, err)
	}
	wrote, err := apply(ctx, r.client, key, t.have.UID, FieldManager, want)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		// The Service is gone, or another one has its name (its UID is part of what is applied). The source tells sooner or later.
		r.settled(key, t, Observed{}, t.wrote)
		return repairDelay, nil
	case err != nil:
		return 0, fmt.Errorf("status of Service %s: %w", key, err)
	}
	r.log.Debug("status written", "service", key.String(), "conditions", len(want))
	t.said = want
	r.settled(key, t, wrote, time.Now())
	r.succeeded()
	about := corev1.ObjectReference{APIVersion: "v1", Kind: nat.KindService, Namespace: key.Namespace, Name: key.Name, UID: t.have.UID}
	if err := r.events.announce(ctx, about, t.have.Conditions, want); err != nil {
		r.failed(err)
	}
	return 0, nil
}

// knownBetter reports whether the verdict is unsure and another node says the same with the particulars. Otherwise an agent that starts while
// another node keeps one of several backends would correct that node's words, be corrected, and so on.
func (t task) knownBetter() bool {
	if t.verdict == nil || !t.verdict.Unsure {
		return false
	}
	c := find(t.have.Conditions, Programmed)
	return c != nil && c.Reason == string(t.verdict.Reason) && !sameConditions(t.have.Conditions, t.said)
}

// task returns what is to be said about a Service, with the latest state that is known.
func (r *Reporter) task(key nat.Key) (task, bool) {
	seen, shown := r.services.Observed(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[key]
	if t == nil {
		return task{}, false
	}
	// A Service that is no longer shown because it lost its label still has what was last seen on it.
	if shown {
		t.have = later(seen, t.have)
	}
	return *t, true
}

// settled notes the state that was found or made, and forgets a Service that nothing more has to be said about. The verdict may have
// changed meanwhile: then the key is in the queue again.
func (r *Reporter) settled(key nat.Key, did task, have Observed, wrote time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.tasks[key]
	if t == nil {
		return
	}
	t.have, t.wrote, t.said = have, wrote, did.said
	if t.verdict == nil && did.verdict == nil {
		delete(r.tasks, key)
	}
}

// apply writes the conditions of a field manager, or takes them away when there are none. The UID guards against another Service of the
// same name.
func apply(
	ctx context.Context, client typedcorev1.ServicesGetter, key nat.Key, uid types.UID, manager string, want []metav1.Condition,
) (Observed, error) {
	service := applycorev1.Service(key.Name, key.Namespace).WithUID(uid)
	if len(want) > 0 {
		status := applycorev1.ServiceStatus()
		for _, c := range want {
			status.WithConditions(applymetav1.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).
				WithMessage(c.Message).WithLastTransitionTime(c.LastTransitionTime))
		}
		service.WithStatus(status)
	}
	// Force: what someone else wrote into a condition of ours is not true because they wrote it.
	options := metav1.ApplyOptions{FieldManager: manager, Force: true}
	after, err := client.Services(key.Namespace).ApplyStatus(ctx, service, options)
	if err != nil {
		return Observed{}, err
	}
	return Observe(after), nil
}
