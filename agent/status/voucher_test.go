// SPDX-License-Identifier: Apache-2.0

package status

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

func verified(addrs ...string) nat.Verdict {
	v := served("203.0.113.10")
	v.Reporter = "node-b"
	for _, a := range addrs {
		v.Verified = append(v.Verified, netip.MustParseAddr(a))
	}
	return v
}

// vouches waits until the Service says what node-a vouches for; empty when it must not say anything.
func (s *server) vouches(t *testing.T, want string) {
	t.Helper()
	testenv.Eventually(t, limit, "the vouch "+want, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		have := ""
		if c := find(s.service.Status.Conditions, nat.VouchPrefix+"node-a"); c != nil {
			have = c.Message
		}
		if have != want {
			return fmt.Errorf("%q", have)
		}
		return nil
	})
}

// forgets waits until nothing is kept.
func (v *Voucher) forgets(t *testing.T) {
	t.Helper()
	testenv.Eventually(t, limit, "nothing is kept", func() error {
		v.mu.Lock()
		defer v.mu.Unlock()
		if len(v.words) > 0 {
			return fmt.Errorf("%+v", v.words)
		}
		return nil
	})
}

func TestAVouchFollowsThePods(t *testing.T) {
	s := newServer()
	v := runVoucher(t, s)
	v.Report(changed(verified("10.244.1.10", "fd00::10")), nil)
	s.vouches(t, "10.244.1.10, fd00::10")
	v.Report(changed(verified("10.244.1.11")), nil)
	s.vouches(t, "10.244.1.11")
	v.Report(changed(verified("10.244.1.11")), nil)
	v.Report(changed(verified()), nil)
	s.vouches(t, "")
	v.forgets(t)
	s.set(func(s *server) { require.Len(t, s.patches, 3) })
}

// TestAVouchIsOneNodes stands beside the conditions of the reporter and of other nodes.
func TestAVouchIsOneNodes(t *testing.T) {
	s := newServer()
	s.had("natplane:node-b", metav1.Condition{Type: nat.VouchPrefix + "node-b", Status: "True", Reason: nat.ReasonPodFound, Message: "10.244.2.10"})
	r, v := run(t, s), runVoucher(t, s)
	r.Report(changed(served("203.0.113.10")), nil)
	s.reasons(t, ReasonSelected, "Programmed", nat.ReasonPodFound)
	v.Report(changed(verified("10.244.1.10")), nil)
	s.vouches(t, "10.244.1.10")
	v.Report(nil, []nat.Key{{Namespace: "tenant-a", Name: "vm-1"}})
	s.vouches(t, "")
	s.reasons(t, ReasonSelected, "Programmed", nat.ReasonPodFound)
}

// TestAVouchOfAnEarlierLifeIsWithdrawn at the first verdict; one that still holds is not written again.
func TestAVouchOfAnEarlierLifeIsWithdrawn(t *testing.T) {
	for _, c := range []struct {
		name    string
		verdict nat.Verdict
		want    string
		writes  int
	}{
		{"the Pod is gone", verified(), "", 1},
		{"the Pod is there", verified("10.244.1.10"), "10.244.1.10", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newServer()
			s.had("natplane:node-a", metav1.Condition{Type: nat.VouchPrefix + "node-a", Status: "True", Reason: nat.ReasonPodFound, Message: "10.244.1.10"})
			v := runVoucher(t, s)
			v.Report(changed(c.verdict), nil)
			s.vouches(t, c.want)
			testenv.Eventually(t, limit, "an empty queue", func() error {
				v.mu.Lock()
				defer v.mu.Unlock()
				if n := v.queue.Len(); n > 0 {
					return fmt.Errorf("%d due", n)
				}
				return nil
			})
			s.set(func(s *server) { require.Len(t, s.patches, c.writes) })
		})
	}
}

// TestAForgedVouchGoes although this node has nothing to say about the Service.
func TestAForgedVouchGoes(t *testing.T) {
	s := newServer()
	v := runVoucher(t, s)
	v.Report(changed(verified()), nil)
	s.set(func(s *server) {
		s.had("natplane:node-a", metav1.Condition{Type: nat.VouchPrefix + "node-a", Status: "True", Reason: "Forged", Message: "10.244.1.66"})
	})
	v.Observe(nat.Key{Namespace: "tenant-a", Name: "vm-1"})
	s.vouches(t, "")
}

func TestVouchOfAServiceWithoutItsLabel(t *testing.T) {
	s := newServer()
	v := runVoucher(t, s)
	v.Report(changed(verified("10.244.1.10")), nil)
	s.vouches(t, "10.244.1.10")
	s.set(func(s *server) { s.shown = false })
	v.Report(nil, []nat.Key{{Namespace: "tenant-a", Name: "vm-1"}})
	s.vouches(t, "")
	v.forgets(t)
}

func TestManagersOfLongNodeNames(t *testing.T) {
	long := strings.Repeat("node.", 50) + "a"
	one, two := (&Voucher{node: long}).manager(), (&Voucher{node: long + "b"}).manager()
	require.LessOrEqual(t, len(one), maxManager)
	require.NotEqual(t, one, two)
	require.Equal(t, "natplane:node-a", (&Voucher{node: "node-a"}).manager())
}

func TestKeptConditions(t *testing.T) {
	s := &corev1.Service{}
	for _, name := range []string{"Other", nat.VouchPrefix + "node-b", Programmed, nat.VouchPrefix + "node-a", PrimaryEgress} {
		s.Status.Conditions = append(s.Status.Conditions, metav1.Condition{Type: name})
	}
	var names []string
	for _, c := range Kept(s) {
		names = append(names, c.Type)
	}
	require.Equal(t, []string{PrimaryEgress, Programmed, nat.VouchPrefix + "node-a", nat.VouchPrefix + "node-b"}, names)
}
