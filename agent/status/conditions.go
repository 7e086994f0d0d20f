// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/natplane/natplane/nat"
)

// The conditions of a Service.
const (
	// Programmed is True when every public address of the Service is translated to its backend.
	Programmed = "networking.cozystack.io/Programmed"
	// PrimaryEgress is True when connections of the backend leave with an address of this Service.
	PrimaryEgress = "networking.cozystack.io/PrimaryEgress"
)

// Reasons of PrimaryEgress.
const (
	ReasonSelected    = "Selected"
	ReasonNotSelected = "NotSelected"
)

// maxMessage keeps a condition within what the API allows (32768 bytes) and what a terminal can show.
const maxMessage = 4096

// Observed is a Service as the API server last showed it.
type Observed struct {
	UID             types.UID
	ResourceVersion string
	// Conditions are ours alone, sorted by type.
	Conditions []metav1.Condition
	// Vouches are what the agents of all nodes vouch for, sorted by type.
	Vouches []metav1.Condition
}

// Observe returns what of a Service matters here.
func Observe(s *corev1.Service) Observed {
	return Observed{UID: s.UID, ResourceVersion: s.ResourceVersion, Conditions: Ours(s.Status.Conditions),
		Vouches: vouches(s.Status.Conditions)}
}

// SameAs reports whether both are the same Service with the same conditions.
func (o Observed) SameAs(p Observed) bool {
	return o.UID == p.UID && sameConditions(o.Conditions, p.Conditions) && sameConditions(o.Vouches, p.Vouches)
}

// Ours returns our conditions among others, sorted by type.
func Ours(conditions []metav1.Condition) []metav1.Condition {
	return pick(conditions, func(c metav1.Condition) bool { return c.Type == Programmed || c.Type == PrimaryEgress })
}

// pick returns those of the conditions that are wanted, sorted by type.
func pick(conditions []metav1.Condition, wanted func(metav1.Condition) bool) []metav1.Condition {
	var picked []metav1.Condition
	for _, c := range conditions {
		if wanted(c) {
			picked = append(picked, c)
		}
	}
	slices.SortFunc(picked, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	return picked
}

// later returns the one of two observations of a Service that shows the later state.
func later(seen, written Observed) Observed {
	if seen.UID != written.UID {
		return seen
	}
	if order, err := resourceversion.CompareResourceVersion(seen.ResourceVersion, written.ResourceVersion); err != nil || order >= 0 {
		return seen
	}
	return written
}

// conditions are what a verdict comes to, sorted by type. Those that keep their status keep the time of their last transition.
func conditions(v nat.Verdict, have []metav1.Condition, now time.Time) []metav1.Condition {
	want := []metav1.Condition{primaryEgress(v), programmed(v)}
	for i := range want {
		want[i].Message = truncate(want[i].Message, maxMessage)
		want[i].LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		if old := find(have, want[i].Type); old != nil && old.Status == want[i].Status {
			want[i].LastTransitionTime = old.LastTransitionTime
		}
	}
	return want
}

func programmed(v nat.Verdict) metav1.Condition {
	c := metav1.Condition{Type: Programmed, Status: metav1.ConditionFalse, Reason: string(v.Reason), Message: v.Message}
	if v.Programmed {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func primaryEgress(v nat.Verdict) metav1.Condition {
	if len(v.PrimaryEgress) > 0 {
		return metav1.Condition{
			Type: PrimaryEgress, Status: metav1.ConditionTrue, Reason: ReasonSelected,
			Message: fmt.Sprintf("connections of the backend leave with %s", join(v.PrimaryEgress)),
		}
	}
	return metav1.Condition{
		Type: PrimaryEgress, Status: metav1.ConditionFalse, Reason: ReasonNotSelected,
		Message: fmt.Sprintf("no backend's connections leave with an address of this Service; to choose it among several, annotate it %s: \"true\"",
			nat.AnnotationPrimary),
	}
}

func find(conditions []metav1.Condition, name string) *metav1.Condition {
	for i := range conditions {
		if conditions[i].Type == name {
			return &conditions[i]
		}
	}
	return nil
}

// sameConditions compares what conditions say, not when they began to.
func sameConditions(a, b []metav1.Condition) bool {
	return slices.EqualFunc(a, b, func(a, b metav1.Condition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
	})
}

func join(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, " and ")
}

// truncate cuts a text to a length in bytes, between characters.
func truncate(s string, n int) string {
	const mark = "..."
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n-len(mark)], "") + mark
}
