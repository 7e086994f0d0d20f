// SPDX-License-Identifier: Apache-2.0

package status

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
)

func served(address string) nat.Verdict {
	a := netip.MustParseAddr(address)
	return nat.Verdict{
		Kind: nat.KindService, Namespace: "tenant-a", Name: "vm-1", Programmed: true, Reason: nat.ReasonProgrammed,
		Message: address + " to 10.244.1.10", Addresses: []netip.Addr{a}, PrimaryEgress: []netip.Addr{a}, Reporter: "node-a",
	}
}

func refused(reason nat.Reason, message string) nat.Verdict {
	return nat.Verdict{Kind: nat.KindService, Namespace: "tenant-a", Name: "vm-1", Reason: reason, Message: message, Reporter: "node-a"}
}

func TestConditionsOfAVerdict(t *testing.T) {
	now := time.Date(2026, 9, 1, 10, 0, 0, 5, time.UTC)
	at := metav1.NewTime(now.Truncate(time.Second))
	want := []metav1.Condition{
		{Type: PrimaryEgress, Status: "True", Reason: "Selected", Message: "connections of the backend leave with 203.0.113.10", LastTransitionTime: at},
		{Type: Programmed, Status: "True", Reason: "Programmed", Message: "203.0.113.10 to 10.244.1.10", LastTransitionTime: at},
	}
	first := conditions(served("203.0.113.10"), nil, now)
	require.Empty(t, cmp.Diff(want, first))

	later := now.Add(time.Hour)
	moved := conditions(served("203.0.113.11"), first, later)
	require.Equal(t, at, moved[0].LastTransitionTime, "another message is no transition")
	lost := conditions(refused(nat.ReasonNoBackend, "203.0.113.10 has no IPv4 endpoint"), first, later)
	for _, c := range lost {
		require.Equal(t, metav1.ConditionFalse, c.Status)
		require.Equal(t, later.Truncate(time.Second), c.LastTransitionTime.Time)
	}
	require.Contains(t, lost[0].Message, nat.AnnotationPrimary, "says what to do")
}

func TestLongMessagesAreCutBetweenCharacters(t *testing.T) {
	text := strings.Repeat("é", maxMessage)
	cut := conditions(refused(nat.ReasonNoBackend, text), nil, time.Now())[1].Message
	require.LessOrEqual(t, len(cut), maxMessage)
	require.True(t, strings.HasSuffix(cut, "é..."), cut[len(cut)-8:])
	require.Equal(t, "short", truncate("short", 5))
}

func TestTheLaterObservationCounts(t *testing.T) {
	old, young := Observed{UID: "1", ResourceVersion: "99"}, Observed{UID: "1", ResourceVersion: "100"}
	require.Equal(t, young, later(young, old))
	require.Equal(t, young, later(old, young), "the watch lags behind what was written")
	other := Observed{UID: "2", ResourceVersion: "50"}
	require.Equal(t, other, later(other, young), "a namesake is another Service")
	require.Equal(t, old, later(old, Observed{}))
}

func TestNews(t *testing.T) {
	programmed := metav1.Condition{Type: Programmed, Status: "True", Reason: "Programmed"}
	failed := metav1.Condition{Type: Programmed, Status: "False", Reason: "NoBackend"}
	selected := metav1.Condition{Type: PrimaryEgress, Status: "True", Reason: ReasonSelected}
	passed := metav1.Condition{Type: PrimaryEgress, Status: "False", Reason: ReasonNotSelected}
	require.True(t, newsworthy(nil, programmed))
	require.True(t, newsworthy(nil, failed))
	require.True(t, newsworthy(&programmed, failed))
	require.False(t, newsworthy(&failed, failed))
	require.True(t, newsworthy(nil, selected))
	require.False(t, newsworthy(nil, passed))
	require.True(t, newsworthy(&selected, passed))
}
