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

	"github.com/natplane/natplane/nat"
)

// maxNote is what the API allows in the message of an Event, in bytes.
const maxNote = 1024

// announce makes an Event of every condition that has a new reason. It comes after the write, so that no change is announced twice; the
// conditions hold the truth, so an Event that cannot be made is not tried again.
func (r *Reporter) announce(ctx context.Context, key nat.Key, before Observed, now []metav1.Condition) {
	for _, c := range now {
		if !newsworthy(find(before.Conditions, c.Type), c) {
			continue
		}
		_, err := r.client.Events(key.Namespace).Create(ctx, r.event(key, before, c), metav1.CreateOptions{})
		if err == nil || apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			continue
		}
		if errors.Is(ctx.Err(), context.Canceled) {
			return // the agent stops
		}
		r.failed(fmt.Errorf("event of Service %s: %w", key, err))
	}
}

// newsworthy holds for a new reason. That a Service is not the primary is the usual case and no news in itself.
func newsworthy(before *metav1.Condition, now metav1.Condition) bool {
	if before == nil {
		return now.Type == Programmed || now.Status == metav1.ConditionTrue
	}
	return before.Reason != now.Reason
}

// event is of the core API, which `kubectl describe service` lists by the object it involves.
func (r *Reporter) event(key nat.Key, service Observed, c metav1.Condition) *corev1.Event {
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
			Namespace: key.Namespace,
			// The pattern of client-go's recorder: unique without a request to find out.
			Name: fmt.Sprintf("%s.%x", key.Name, now.UnixNano()),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "v1", Kind: nat.KindService, Namespace: key.Namespace, Name: key.Name, UID: service.UID,
		},
		Type:                kind,
		Reason:              reason,
		Message:             truncate(c.Message, maxNote),
		Source:              corev1.EventSource{Component: FieldManager, Host: r.node},
		ReportingController: FieldManager,
		ReportingInstance:   r.node,
		FirstTimestamp:      metav1.NewTime(now),
		LastTimestamp:       metav1.NewTime(now),
		Count:               1,
	}
}
