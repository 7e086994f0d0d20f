// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/natplane/natplane/agent/status"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
	"github.com/natplane/natplane/testenv/kube"
)

const (
	shardRight = "patch network.datumapis.com/egressshards/status"
	galactic   = "galactic-system"
	shardIPv6  = "2001:db8:203::200"
	shardIPv4  = "203.0.113.200"
)

// shardClient has all rights.
type shardClient struct{ api dynamic.ResourceInterface }

func newShardClient(t *testing.T, c *kube.Cluster) shardClient {
	t.Helper()
	c.Namespace(t, galactic)
	resource := schema.GroupVersionResource{Group: "network.datumapis.com", Version: "v1alpha1", Resource: "egressshards"}
	return shardClient{c.Dynamic.Resource(resource).Namespace(galactic)}
}

func shardObject(name, node string, spec map[string]any) *unstructured.Unstructured {
	spec["targetRef"] = map[string]any{"kind": "Node", "name": node}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "network.datumapis.com/v1alpha1", "kind": "EgressShard",
		"metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func (s shardClient) create(t *testing.T, name, node, ipv6 string) {
	t.Helper()
	spec := map[string]any{}
	if ipv6 != "" {
		spec["shardAddressIPv6"] = ipv6
	}
	require.NoError(t, s.tryCreate(name, node, spec))
}

// tryCreate waits for a definition that is not served yet.
func (s shardClient) tryCreate(name, node string, spec map[string]any) error {
	_, err := s.api.Create(context.Background(), shardObject(name, node, spec), metav1.CreateOptions{})
	for end := time.Now().Add(soon); apierrors.IsNotFound(err) && time.Now().Before(end); {
		_, err = s.api.Create(context.Background(), shardObject(name, node, spec), metav1.CreateOptions{})
	}
	return err
}

func (s shardClient) get(t *testing.T, name string) *nat.EgressShard {
	t.Helper()
	object, err := s.api.Get(context.Background(), name, metav1.GetOptions{})
	require.NoError(t, err)
	shard := &nat.EgressShard{}
	require.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, shard))
	return shard
}

// edit changes the spec and returns what the API server says to it.
func (s shardClient) edit(t *testing.T, name string, change func(spec map[string]any)) error {
	t.Helper()
	for {
		object, err := s.api.Get(context.Background(), name, metav1.GetOptions{})
		require.NoError(t, err)
		change(object.Object["spec"].(map[string]any))
		if _, err = s.api.Update(context.Background(), object, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// says waits for a status: both reasons, the addresses, and the generation of the object.
func (s shardClient) says(t *testing.T, name, ready string, programmed nat.Reason, ipv4, ipv6 string) *nat.EgressShard {
	t.Helper()
	var shard *nat.EgressShard
	testenv.Eventually(t, soon, "status of "+name, func() error {
		shard = s.get(t, name)
		have := fmt.Sprintf("%s %s %q %q", shardReason(shard, status.ShardReady), shardReason(shard, status.ShardProgrammed),
			shard.Status.ShardAddressIPv4, shard.Status.ShardAddressIPv6)
		if err := same(fmt.Sprintf("%s %s %q %q", ready, programmed, ipv4, ipv6), have); err != nil {
			return err
		}
		return same(shard.Generation, shard.Status.ObservedGeneration)
	})
	require.Empty(t, shard.Status.NAT64Prefix)
	return shard
}

func shardReason(s *nat.EgressShard, name string) string {
	for _, c := range s.Status.Conditions {
		if c.Type == name {
			return c.Reason
		}
	}
	return "none"
}

func shardCondition(t *testing.T, s *nat.EgressShard, name string) metav1.Condition {
	t.Helper()
	for _, c := range s.Status.Conditions {
		if c.Type == name {
			return c
		}
	}
	require.Fail(t, "no condition "+name)
	return metav1.Condition{}
}

// TestShardStatusTellsWhatIsProgrammed through the life of a shard, and is written no more often than that.
func TestShardStatusTellsWhatIsProgrammed(t *testing.T) {
	c := twoNodes(t)
	c.Definition(t, shardsFile)
	config, shards := agentConfig(t, c), newShardClient(t, c)
	a := startAgent(t, config, nodeA)
	b := startAgent(t, config, nodeB)

	shards.create(t, "one", nodeA, "")
	shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressUnassigned, "", "")
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) { spec["shardAddressIPv6"] = shardIPv6 }))
	one := shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
	require.Equal(t, metav1.ConditionTrue, shardCondition(t, one, status.ShardReady).Status)
	require.Contains(t, shardCondition(t, one, status.ShardReady).Message, "not known here")
	since := shardCondition(t, one, status.ShardProgrammed).LastTransitionTime

	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) { spec["drain"] = true }))
	one = shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
	require.Equal(t, since, shardCondition(t, one, status.ShardProgrammed).LastTransitionTime)

	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) {
		spec["shardAddressIPv4"], spec["nat64Prefix"] = shardIPv4, "64:ff9b::/96"
	}))
	one = shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, shardIPv4, shardIPv6)
	require.Contains(t, shardCondition(t, one, status.ShardProgrammed).Message, "NAT64 is not translated")

	shards.create(t, "two", nodeA, "2001:db8:203::201")
	shards.says(t, "two", status.ReasonDatapathNotAttached, nat.ReasonShardConflict, "", "")
	shards.says(t, "one", status.ReasonDatapathNotAttached, nat.ReasonShardConflict, "", "")
	require.NoError(t, shards.api.Delete(context.Background(), "two", metav1.DeleteOptions{}))
	one = shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, shardIPv4, shardIPv6)

	require.Zero(t, b.tap.count(shardRight), "the other node says nothing")
	written := a.tap.count(shardRight)
	testenv.Eventually(t, soon, "an Event for each change of a reason", func() error {
		return same(map[string]int{
			"Warning AddressUnassigned": 1, "Normal AddressesProgrammed": 2, "Warning ShardConflict": 1,
			"Normal DatapathAttached": 2, "Warning DatapathNotAttached": 1,
		}, shardEvents(t, c, one))
	})
	a.stop()
	again := startAgent(t, config, nodeA)
	testenv.Eventually(t, soon, "the restarted agent judges", func() error { return atLeast(1, again.passes.Load()) })
	holds(t, 2*time.Second, func() error { return same(one.ResourceVersion, shards.get(t, "one").ResourceVersion) })
	require.Zero(t, again.tap.count(shardRight), "a restart writes nothing")
	require.LessOrEqual(t, written, 12)
}

// shardEvents counts what kubectl describe shows of a shard.
func shardEvents(t *testing.T, c *kube.Cluster, s *nat.EgressShard) map[string]int {
	t.Helper()
	list, err := c.Core.Events(galactic).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=EgressShard,involvedObject.name=" + s.Name + ",involvedObject.uid=" + string(s.UID),
	})
	require.NoError(t, err)
	found := map[string]int{}
	for _, e := range list.Items {
		require.Equal(t, "network.datumapis.com/v1alpha1", e.InvolvedObject.APIVersion)
		require.NotEmpty(t, e.Message)
		found[e.Type+" "+e.Reason]++
	}
	return found
}

// TestShardStatusPutsRightWhatOthersWrote, an address that is not programmed and a NAT64 identity among it.
func TestShardStatusPutsRightWhatOthersWrote(t *testing.T) {
	c := twoNodes(t)
	c.Definition(t, shardsFile)
	shards := newShardClient(t, c)
	shards.create(t, "one", nodeA, shardIPv6)
	startAgent(t, agentConfig(t, c), nodeA)
	shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
	object, err := shards.api.Get(context.Background(), "one", metav1.GetOptions{})
	require.NoError(t, err)
	object.Object["status"].(map[string]any)["shardAddressIPv4"] = "203.0.113.99"
	object.Object["status"].(map[string]any)["nat64Prefix"] = "64:ff9b::/96"
	_, err = shards.api.UpdateStatus(context.Background(), object, metav1.UpdateOptions{})
	require.NoError(t, err)
	testenv.Eventually(t, soon, "put right", func() error {
		s := shards.get(t, "one").Status
		return same("", s.ShardAddressIPv4+s.NAT64Prefix)
	})
	shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
}

// TestShardStatusOnAnOlderDefinition: one that knows neither drain nor the well-known prefix, and has no rules.
func TestShardStatusOnAnOlderDefinition(t *testing.T) {
	c := twoNodes(t)
	c.Definition(t, olderDefinition(t))
	shards := newShardClient(t, c)
	require.NoError(t, shards.tryCreate("one", nodeA, map[string]any{"shardAddressIPv6": shardIPv6, "drain": true}))
	config := agentConfig(t, c)
	a := startAgent(t, config, nodeA)
	shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)

	// Without rules an address can be changed. It is not followed, and the status says so.
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) { spec["shardAddressIPv6"] = "2001:db8:203::201" }))
	one := shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
	require.Contains(t, shardCondition(t, one, status.ShardProgrammed).Message, "write-once")

	// A shard can move. The node that it names speaks for it, the other is silent.
	b := startAgent(t, config, nodeB)
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) {
		spec["targetRef"].(map[string]any)["name"] = nodeB
	}))
	shards.says(t, "one", status.ReasonDatapathAttached, nat.ReasonAddressesProgrammed, "", shardIPv6)
	testenv.Eventually(t, soon, "the new node wrote", func() error { return atLeast(1, int64(b.tap.count(shardRight))) })
	before := a.tap.count(shardRight)
	holds(t, 4*time.Second, func() error { return same(before, a.tap.count(shardRight)) })
}

// olderDefinition is the definition without rules and optional fields.
func olderDefinition(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(shardsFile)
	require.NoError(t, err)
	var lines []string
	skip := -1 // the indentation of the rules that are left out
	for line := range strings.Lines(string(text)) {
		indent := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case skip >= 0 && indent > skip:
			continue
		case strings.Contains(line, "x-kubernetes-validations"):
			skip = indent
			continue
		}
		skip = -1
		if !strings.Contains(line, "drain:") && !strings.Contains(line, "translateWellKnownPrefix:") {
			lines = append(lines, line)
		}
	}
	file := filepath.Join(t.TempDir(), "older.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600))
	return file
}

// TestShardDefinitionHoldsTheContract: what is write-once, what comes together, and what is an address.
func TestShardDefinitionHoldsTheContract(t *testing.T) {
	c := kube.Start(t)
	c.Definition(t, shardsFile)
	shards := newShardClient(t, c)
	for name, spec := range map[string]map[string]any{
		"IPv4 without NAT64":      {"shardAddressIPv4": shardIPv4},
		"NAT64 without IPv4":      {"nat64Prefix": "64:ff9b::/96"},
		"IPv6 that is IPv4":       {"shardAddressIPv6": shardIPv4},
		"IPv4 that is IPv6":       {"shardAddressIPv4": shardIPv6, "nat64Prefix": "64:ff9b::/96"},
		"no address":              {"shardAddressIPv6": "nonsense"},
		"no prefix":               {"shardAddressIPv4": shardIPv4, "nat64Prefix": "nonsense"},
		"a claim of another kind": {"shardAddressIPv6ClaimRef": map[string]any{"kind": "Pod", "name": "x"}},
	} {
		err := shards.tryCreate("bad", nodeA, spec)
		require.True(t, apierrors.IsInvalid(err), "%s: %v", name, err)
	}
	require.NoError(t, shards.tryCreate("one", nodeA, map[string]any{"shardSID": "2001:db8::", "drain": true}))
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) { spec["shardAddressIPv6"] = shardIPv6 }), "set once")
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) {
		spec["shardAddressIPv4"], spec["nat64Prefix"] = shardIPv4, "64:ff9b::/96"
	}), "set once")
	for name, change := range map[string]func(map[string]any){
		"another IPv6 address": func(spec map[string]any) { spec["shardAddressIPv6"] = "2001:db8:203::201" },
		"no IPv6 address":      func(spec map[string]any) { delete(spec, "shardAddressIPv6") },
		"another IPv4 address": func(spec map[string]any) { spec["shardAddressIPv4"] = "203.0.113.201" },
		"no IPv4 address":      func(spec map[string]any) { delete(spec, "shardAddressIPv4"); delete(spec, "nat64Prefix") },
		"another NAT64 prefix": func(spec map[string]any) { spec["nat64Prefix"] = "2001:db8:64::/96" },
		"another node":         func(spec map[string]any) { spec["targetRef"].(map[string]any)["name"] = nodeB },
	} {
		require.True(t, apierrors.IsInvalid(shards.edit(t, "one", change)), name)
	}
	require.NoError(t, shards.edit(t, "one", func(spec map[string]any) { spec["drain"] = false }))
}
