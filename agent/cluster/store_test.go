// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
)

// idle is a source that asks nobody, with the stores of its kinds.
func idle(t *testing.T) (*Source, map[string]*store) {
	t.Helper()
	s, err := Open(Options{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Node: "node-a", ProxyNames: nat.DefaultProxyNames()})
	require.NoError(t, err)
	stores := map[string]*store{}
	for _, k := range s.kinds {
		stores[k.name] = newStore(s, k)
	}
	return s, stores
}

func testService(name, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: name, UID: types.UID(name), ResourceVersion: version}}
}

func signalled(s *Source) bool {
	select {
	case <-s.Changed():
		return true
	default:
		return false
	}
}

var vm1, vm2 = nat.Key{Namespace: "tenant-a", Name: "vm-1"}, nat.Key{Namespace: "tenant-a", Name: "vm-2"}

func TestCompleteOnceEveryKindWasListed(t *testing.T) {
	s, stores := idle(t)
	names := []string{services, endpointSlices, pods, nodes, shards}
	require.Len(t, stores, len(names))
	for _, name := range names {
		_, complete := s.Take()
		require.False(t, complete, name)
		signalled(s)
		require.NoError(t, stores[name].Replace(nil, ""))
		require.True(t, signalled(s), "an empty first list is news")
	}
	_, complete := s.Take()
	require.True(t, complete)
}

func TestAListTellsWhatIsGone(t *testing.T) {
	s, stores := idle(t)
	store := stores[services]
	require.NoError(t, store.Replace([]any{testService("vm-1", "1"), testService("vm-2", "2")}, ""))
	batch, _ := s.Take()
	require.Len(t, batch.Services, 2)
	signalled(s)

	require.NoError(t, store.Replace([]any{testService("vm-2", "2")}, ""))
	require.True(t, signalled(s))
	batch, _ = s.Take()
	require.Len(t, batch.Services, 1, "what is the same version is not delivered again")
	gone, listed := batch.Services[vm1]
	require.True(t, listed)
	require.Nil(t, gone)
	_, known := s.Observed(vm1)
	require.False(t, known)

	require.NoError(t, store.Replace([]any{testService("vm-2", "2")}, ""))
	require.False(t, signalled(s), "a list without news wakes nobody")
}

func TestADeleteCountsByName(t *testing.T) {
	s, stores := idle(t)
	store := stores[endpointSlices]
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "vm-1", ResourceVersion: "1"}}
	require.NoError(t, store.Add(slice))
	s.Take()
	stale := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "tenant-a", Name: "vm-1"},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.244.9.9"}}},
	}
	require.NoError(t, store.Delete(stale))
	batch, _ := s.Take()
	gone, listed := batch.Slices[vm1]
	require.True(t, listed)
	require.Nil(t, gone)
	require.NoError(t, store.Delete(stale), "twice is once")
	batch, _ = s.Take()
	require.Zero(t, batch.Len())
}

func TestTheLastStateOfABatchCounts(t *testing.T) {
	s, stores := idle(t)
	store := stores[services]
	require.NoError(t, store.Add(testService("vm-1", "1")))
	require.NoError(t, store.Delete(testService("vm-1", "1")))
	require.NoError(t, store.Add(testService("vm-2", "3")))
	require.NoError(t, store.Delete(testService("vm-2", "3")))
	require.NoError(t, store.Add(testService("vm-2", "5")))
	batch, _ := s.Take()
	require.Nil(t, batch.Services[vm1])
	require.Equal(t, "5", batch.Services[vm2].ResourceVersion)
}

func TestHeartbeatsWakeNobody(t *testing.T) {
	s, stores := idle(t)
	node := func(version, address string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: "1", ResourceVersion: version},
			Status: corev1.NodeStatus{
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}},
			},
		}
	}
	require.NoError(t, stores[nodes].Add(node("1", "198.51.100.1")))
	require.True(t, signalled(s))
	require.NoError(t, stores[nodes].Update(node("2", "198.51.100.1")))
	require.False(t, signalled(s))
	require.NoError(t, stores[nodes].Update(node("3", "198.51.100.2")))
	require.True(t, signalled(s))
	batch, _ := s.Take()
	require.Equal(t, "198.51.100.2", batch.Nodes["node-a"].Status.Addresses[0].Address)
}

func TestConditionsThatChangeAreObserved(t *testing.T) {
	s, stores := idle(t)
	var observed []nat.Key
	s.OnObserved(func(key nat.Key) { observed = append(observed, key) })
	service := testService("vm-1", "1")
	require.NoError(t, stores[services].Add(service))
	require.Equal(t, []nat.Key{vm1}, observed)
	service.ResourceVersion = "2"
	service.Status.Conditions = []metav1.Condition{{Type: "example.org/Other"}}
	require.NoError(t, stores[services].Update(service))
	require.Len(t, observed, 1, "conditions of others are not ours")
	service.ResourceVersion = "3"
	service.Status.Conditions = append(service.Status.Conditions, metav1.Condition{Type: status.Programmed, Reason: "Programmed"})
	require.NoError(t, stores[services].Update(service))
	require.Len(t, observed, 2)
	seen, _ := s.Observed(vm1)
	require.Equal(t, "3", seen.ResourceVersion)
	require.Len(t, seen.Conditions, 1)
}

// TestShardsStayUntilTheServerSaysTwice takes the CRD away under shards that were delivered.
func TestShardsStayUntilTheServerSaysTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := idle(t)
		k := s.kinds[len(s.kinds)-1]
		missing := apierrors.NewNotFound(shardResource().GroupResource(), "")
		k.list = func(context.Context, metav1.ListOptions) (runtime.Object, error) { return nil, missing }
		k.watch = func(context.Context, metav1.ListOptions) (watch.Interface, error) { return nil, missing }
		polls := make(chan bool)
		k.optional = func(context.Context) (bool, error) { return <-polls, nil }
		f := newFollower(s, k)
		shard := &nat.EgressShard{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one", ResourceVersion: "1"}}
		require.NoError(t, f.store.Replace([]any{shard}, ""))
		s.Take()

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.run(ctx)
		polls <- false
		synctest.Wait()
		require.Contains(t, s.Problems()[0], "EgressShards are not served")
		<-time.After(absentPollMax) // the bubble's clock; the second question waits for its answer
		batch, _ := s.Take()
		require.Empty(t, batch.Shards, "once is not certain")
		polls <- false
		synctest.Wait()
		batch, _ = s.Take()
		require.Contains(t, batch.Shards, nat.Key{Namespace: "default", Name: "one"})
		require.Zero(t, f.store.size())
		cancel()
		close(polls)
		synctest.Wait()
	})
}

func TestOpenRefusesWhatCannotWork(t *testing.T) {
	config := &rest.Config{Host: "https://127.0.0.1:1"}
	for _, o := range []Options{
		{Node: "node-a", ProxyNames: []string{"natplane"}},
		{Config: config, ProxyNames: []string{"natplane"}},
		{Config: config, Node: "node-a"},
		{Config: config, Node: "node-a", ProxyNames: []string{"not a label value"}},
		{Config: &rest.Config{Host: "::"}, Node: "node-a", ProxyNames: []string{"natplane"}},
	} {
		_, err := Open(o)
		require.Error(t, err)
	}
}

func TestServerAddresses(t *testing.T) {
	for host, want := range map[string]string{
		"https://10.96.0.1:443": "10.96.0.1", "https://[fd00::1]:6443": "fd00::1", "10.96.0.1:443": "10.96.0.1", "https://api.example.org": "",
	} {
		got := ServerAddresses(&rest.Config{Host: host})
		if want == "" {
			require.Empty(t, got, host)
			continue
		}
		require.Len(t, got, 1, host)
		require.Equal(t, want, got[0].String())
	}
}
