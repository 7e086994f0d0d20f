// SPDX-License-Identifier: Apache-2.0

package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

const limit = 15 * time.Second

// server keeps one Service and takes what is applied to it. It knows as much of server-side apply as is needed here: what a field manager
// applies replaces what that manager applied before.
type server struct {
	mu      sync.Mutex
	service corev1.Service
	applied map[string][]metav1.Condition // by field manager
	version int
	shown   bool
	patches []time.Time
	events  []string
	// refuse, when set, is the status code of every write.
	refuse int
	// hold, when set, keeps every write until it is closed.
	hold chan struct{}
}

func newServer() *server {
	return &server{shown: true, version: 1, applied: map[string][]metav1.Condition{}, service: corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "vm-1", UID: "1", ResourceVersion: "1"},
	}}
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hold, refuse := s.hold, s.refuse
	if r.Method == http.MethodPatch {
		s.patches = append(s.patches, time.Now())
	}
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-r.Context().Done():
			return
		}
	}
	if refuse != 0 {
		http.Error(w, "refused", refuse)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/services/vm-1/status"):
		var applied corev1.Service
		manager := r.URL.Query().Get("fieldManager")
		if json.NewDecoder(r.Body).Decode(&applied) != nil || !strings.HasPrefix(manager, FieldManager) {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		if applied.UID != "" && applied.UID != s.service.UID {
			w.WriteHeader(http.StatusConflict)
			return
		}
		s.version++
		s.service.ResourceVersion = fmt.Sprint(s.version)
		others := pick(s.service.Status.Conditions, func(c metav1.Condition) bool { return find(s.applied[manager], c.Type) == nil })
		s.applied[manager] = applied.Status.Conditions
		s.service.Status.Conditions = pick(append(others, applied.Status.Conditions...), func(metav1.Condition) bool { return true })
		_ = json.NewEncoder(w).Encode(s.service)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		var event corev1.Event
		_ = json.NewDecoder(r.Body).Decode(&event)
		s.events = append(s.events, event.Reason)
		_ = json.NewEncoder(w).Encode(event)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

// Observed is a watch that is never late.
func (s *server) Observed(nat.Key) (Observed, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shown {
		return Observed{}, false
	}
	return Observe(&s.service), true
}

func (s *server) set(f func(*server)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(s)
}

// had has the Service begin with conditions of a field manager.
func (s *server) had(manager string, conditions ...metav1.Condition) {
	s.applied[manager] = conditions
	s.service.Status.Conditions = append(s.service.Status.Conditions, conditions...)
}

// reasons waits until the Service has these reasons, PrimaryEgress first; none when it has no condition.
func (s *server) reasons(t *testing.T, want ...string) {
	t.Helper()
	testenv.Eventually(t, limit, "conditions", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		var have []string
		for _, c := range s.service.Status.Conditions {
			have = append(have, c.Reason)
		}
		if strings.Join(have, ",") != strings.Join(want, ",") {
			return fmt.Errorf("%q instead of %q", have, want)
		}
		return nil
	})
}

func run(t *testing.T, s *server) *Reporter {
	t.Helper()
	r := New(s.options(t))
	while(t, r.Run)
	return r
}

func runVoucher(t *testing.T, s *server) *Voucher {
	t.Helper()
	v := NewVoucher(s.options(t))
	while(t, v.Run)
	return v
}

func (s *server) options(t *testing.T) Options {
	t.Helper()
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	client, err := typedcorev1.NewForConfig(&rest.Config{Host: web.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	return Options{Client: client, Services: s, Node: "node-a"}
}

// while runs f until the test ends.
func while(t *testing.T, f func(context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); f(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func changed(v ...nat.Verdict) []nat.Verdict { return v }

func TestReportDoesNotWaitForTheServer(t *testing.T) {
	s := newServer()
	s.hold = make(chan struct{})
	r := run(t, s)
	reported := make(chan struct{})
	go func() {
		for i := range 1000 {
			v := served("203.0.113.10")
			v.Message = fmt.Sprint("change ", i)
			r.Report(changed(v), nil)
		}
		close(reported)
	}()
	select {
	case <-reported:
	case <-time.After(limit):
		require.FailNow(t, "Report waits")
	}
	close(s.hold)
	testenv.Eventually(t, limit, "the last verdict", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c := find(s.service.Status.Conditions, Programmed); c == nil || c.Message != "change 999" {
			return errors.New("not yet")
		}
		return nil
	})
	s.set(func(s *server) { require.LessOrEqual(t, len(s.patches), 3, "a thousand changes are few writes") })
}

func TestAFlappingServiceIsWrittenOncePerSecond(t *testing.T) {
	s := newServer()
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed")
	r.Report(changed(refused(nat.ReasonNoBackend, "none")), nil)
	s.reasons(t, ReasonNotSelected, "NoBackend")
	s.set(func(s *server) {
		require.Len(t, s.patches, 2)
		require.GreaterOrEqual(t, s.patches[1].Sub(s.patches[0]), spacing-100*time.Millisecond)
	})
	testenv.Eventually(t, limit, "events", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		want := "PrimaryEgressSelected Programmed PrimaryEgressNotSelected NoBackend"
		if have := strings.Join(s.events, " "); have != want {
			return errors.New(have)
		}
		return nil
	})
}

func TestAFailedWriteIsRepeated(t *testing.T) {
	s := newServer()
	s.refuse = http.StatusInternalServerError
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	testenv.Eventually(t, limit, "two attempts", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.patches) < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	s.set(func(s *server) { s.refuse = 0 })
	s.reasons(t, ReasonSelected, "Programmed")
}

func TestConditionsGoWithTheService(t *testing.T) {
	s := newServer()
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed")
	// The label is gone: the source does not show the Service any more.
	s.set(func(s *server) { s.shown = false })
	r.Report(nil, []nat.Key{{Namespace: "tenant-a", Name: "vm-1"}})
	s.reasons(t)
	testenv.Eventually(t, limit, "nothing is kept", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.tasks) > 0 {
			return errors.New("a task is left")
		}
		return nil
	})
}

// TestConditionsOfAnEarlierLifeGo removes what an earlier agent wrote although this one never had to write.
func TestConditionsOfAnEarlierLifeGo(t *testing.T) {
	s := newServer()
	s.had(FieldManager, conditions(served("203.0.113.10"), nil, time.Now())...)
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.set(func(s *server) { s.shown = false })
	r.Report(nil, []nat.Key{{Namespace: "tenant-a", Name: "vm-1"}})
	s.reasons(t)
	s.set(func(s *server) { require.Len(t, s.patches, 1) })
}

// TestANamesakeIsLeftAlone reports the end of a Service when another one has its name already.
func TestANamesakeIsLeftAlone(t *testing.T) {
	s := newServer()
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed")
	s.set(func(s *server) { s.service.UID, s.shown = "2", false })
	r.Report(nil, []nat.Key{{Namespace: "tenant-a", Name: "vm-1"}})
	testenv.Eventually(t, limit, "the attempt", func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.tasks) > 0 {
			return errors.New("a task is left")
		}
		return nil
	})
	s.reasons(t, ReasonSelected, "Programmed")
}

func TestOthersReport(t *testing.T) {
	s := newServer()
	r := run(t, s)
	foreign, shard := served("203.0.113.10"), served("203.0.113.10")
	foreign.Reporter = "node-b"
	shard.Kind = nat.KindEgressShard
	r.Report(changed(foreign, shard), nil)
	require.Empty(t, r.tasks)
	require.Zero(t, r.queue.Len())
	// The role moves here and away again before anything is due.
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed")
	r.Report(changed(foreign), nil)
	require.Empty(t, r.tasks)
}

func TestAnUnsureVerdictLeavesTheWordToTheNodeThatKnows(t *testing.T) {
	says := func(reason nat.Reason, message string) []metav1.Condition {
		return conditions(refused(reason, message), nil, time.Now())
	}
	unsure := refused(nat.ReasonMultipleBackends, "nothing is programmed")
	unsure.Unsure = true
	sure := refused(nat.ReasonMultipleBackends, "10.244.1.10 stays")
	others := says(nat.ReasonMultipleBackends, "10.244.1.10 stays")
	require.True(t, task{verdict: &unsure, have: Observed{Conditions: others}}.knownBetter())
	require.True(t, task{verdict: &unsure, have: Observed{Conditions: others}, said: says(nat.ReasonMultipleBackends, "own")}.knownBetter())
	require.False(t, task{verdict: &unsure, have: Observed{Conditions: others}, said: others}.knownBetter(), "its own words it may correct")
	require.False(t, task{verdict: &unsure, have: Observed{Conditions: says(nat.ReasonNoBackend, "none")}}.knownBetter(), "something else")
	require.False(t, task{verdict: &unsure}.knownBetter(), "nothing was said yet")
	require.False(t, task{verdict: &sure, have: Observed{Conditions: says(nat.ReasonMultipleBackends, "nothing")}}.knownBetter())
	require.False(t, task{}.knownBetter())
}

func TestAnUnsureNodeCorrectsItsOwnWords(t *testing.T) {
	s := newServer()
	r := run(t, s)
	for _, message := range []string{"two backends", "three backends"} {
		v := refused(nat.ReasonMultipleBackends, message)
		v.Unsure = true
		r.Report(changed(v), nil)
		testenv.Eventually(t, limit, message, func() (err error) {
			s.set(func(s *server) {
				if c := find(s.service.Status.Conditions, Programmed); c == nil || c.Message != message {
					err = fmt.Errorf("%+v", c)
				}
			})
			return err
		})
	}
}

func TestWhatHoldsForAMomentIsNotWritten(t *testing.T) {
	s := newServer()
	r := run(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed")
	r.Report(changed(refused(nat.ReasonElsewhere, "one family has moved")), nil)
	r.Report(changed(served("203.0.113.10")), nil)
	r.Report(changed(served("203.0.113.11")), nil)
	testenv.Eventually(t, limit, "the next address", func() (err error) {
		s.set(func(s *server) {
			if c := find(s.service.Status.Conditions, PrimaryEgress); c.Message != "connections of the backend leave with 203.0.113.11" {
				err = errors.New(c.Message)
			}
		})
		return err
	})
	s.set(func(s *server) {
		require.Len(t, s.patches, 2)
		require.Equal(t, []string{"PrimaryEgressSelected", "Programmed"}, s.events)
	})
}
