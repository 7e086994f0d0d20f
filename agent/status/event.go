// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// maxNote is what the API allows in the message of an Event, in bytes.
const maxNote = 1024

// announcer makes Events.
type announcer struct {
	client typedcorev1.EventsGetter
	node   string
}

// announce makes an Event of every condition that has a new reason. It comes after the write, so that no change is announced twice; the
// conditions hold the truth, so an Event that cannot be made is not tried again.
func (a announcer) announce(ctx context.Context, about corev1.ObjectReference, before, now []metav1.Condition) error {
	var errs []error
	for _, c := range now {
		if !newsworthy(find(before, c.Type), c) {
			continue
		}
		_, err := a.client.Events(about.Namespace).Create(ctx, a.event(about, c), metav1.CreateOptions{})
		if err == nil || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			continue
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			break // the agent stops
		}
		errs = append(errs, fmt.Errorf("event of %s %s/%s: %w", about.Kind, about.Namespace, about.Name, err))
	}
	return errors.Join(errs...)
}

// newsworthy holds for a new reason. That a Service is not the primary is the usual case and no news in itself.
func newsworthy(before *metav1.Condition, now metav1.Condition) bool {
	if before == nil {
		return now.Type != PrimaryEgress || now.Status == metav1.ConditionTrue
	}
	return before.Reason != now.Reason
}

// event is of the core API, which `kubectl describe` lists by the object it involves.
func (a announcer) event(about corev1.ObjectReference, c metav1.Condition) *corev1.Event {
	now := time.Now()
	kind, reason := corev1.EventTypeNormal, c.Reason
	switch {
	case c.Type == PrimaryEgress:
		reason = "PrimaryEgress" + c.Reason
	case c.Status != metav1.ConditionTrue:
		kind = corev1.EventTypeWarning
	}
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: about.Namespace,
			// The pattern of client-go's recorder: unique without a request to find out.
			Name: fmt.Sprintf("%s.%x", about.Name, now.UnixNano()),
		},
		InvolvedObject:      about,
		Type:                kind,
		Reason:              reason,
		Message:             truncate(c.Message, maxNote),
		Source:              corev1.EventSource{Component: FieldManager, Host: a.node},
		ReportingController: FieldManager,
		ReportingInstance:   a.node,
		FirstTimestamp:      metav1.NewTime(now),
		LastTimestamp:       metav1.NewTime(now),
		Count:               1,
	}
}
