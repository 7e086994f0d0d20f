// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
)

var update = flag.Bool("update", false, "rewrite testdata from what the commands print")

const examples = "../../deploy/examples"

// clusterFlags are the ranges of the example cluster that its Node objects do not list.
var clusterFlags = []string{"--cluster-cidr=10.244.0.0/16", "--cluster-cidr=10.96.0.0/16", "--cluster-cidr=fd00:10:244::/48"}

type result struct {
	code     int
	out, err string
}

func natplane(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	var out, errs bytes.Buffer
	code := run(t.Context(), args, stdio{strings.NewReader(stdin), &out, &errs})
	return result{code, out.String(), errs.String()}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), got))
}

func TestPlanOfTheExamples(t *testing.T) {
	for _, node := range []string{"node-a", "node-b"} {
		for format, ending := range map[string]string{"table": ".txt", "json": ".json"} {
			t.Run(node+" "+format, func(t *testing.T) {
				args := append([]string{"plan", "-f", examples, "--node-name", node, "-o", format}, clusterFlags...)
				r := natplane(t, "", args...)
				require.Equal(t, exitDone, r.code, r.err)
				require.Empty(t, r.err)
				golden(t, "plan-"+node+ending, r.out)
				require.Equal(t, r, natplane(t, "", args...), "two runs are the same to the byte")
			})
		}
	}
}

// A plan has no interfaces to look at; the flags are those of the agent all the same.
func TestPlanTakesTheFlagsOfTenants(t *testing.T) {
	args := append([]string{"plan", "-f", examples, "--node-name", "node-a"}, clusterFlags...)
	with := append(args, "--tenant-interface", "tenant-*", "--tenant-interface=vlan7=70", "--tenant-interface", "vlan8")
	r := natplane(t, "", with...)
	require.Equal(t, exitDone, r.code, r.err)
	require.Equal(t, natplane(t, "", args...), r)
}

func TestPlanKeepsGoodObjectsBesideBadInput(t *testing.T) {
	dir := t.TempDir()
	good, err := os.ReadFile(filepath.Join(examples, "vm-instances.yaml"))
	require.NoError(t, err)
	for name, content := range map[string]string{
		"a-good.yaml":    string(good),
		"b-broken.yaml":  "kind: [unclosed",
		"c-unknown.yaml": "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n",
		"d-service.yaml": `
apiVersion: v1
kind: Service
metadata:
  name: bad-address
  namespace: tenant-c
  labels: {service.kubernetes.io/service-proxy-name: natplane}
  annotations: {networking.cozystack.io/wholeIP: "true"}
spec: {type: LoadBalancer, ports: [{port: 1}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.010}]}}
`,
		"e-slice.yaml": `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: bad-slice, namespace: tenant-a, labels: {kubernetes.io/service-name: vm-instance-web}}
addressType: IPv4
ports: []
endpoints: [{addresses: []}, {addresses: ["::ffff:10.244.1.10"], nodeName: node-a}]
`,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	r := natplane(t, "", append([]string{"plan", "-f", dir, "--node-name", "node-a", "-o", "json"}, clusterFlags...)...)
	require.Equal(t, exitFailed, r.code, "a script has to notice")
	require.Contains(t, r.err, "b-broken.yaml")
	require.Contains(t, r.err, "c-unknown.yaml")
	require.Contains(t, r.err, "Secret")

	var plan nat.Plan
	require.NoError(t, json.Unmarshal([]byte(r.out), &plan))
	require.Len(t, plan.Translations, 4, "those of the examples")
	verdicts := map[string]nat.Verdict{}
	for _, v := range plan.Verdicts {
		verdicts[v.Key().String()] = v
	}
	bad := verdicts["tenant-c/bad-address"]
	require.Equal(t, nat.ReasonInvalidAddress, bad.Reason)
	require.Contains(t, bad.Message, "203.0.113.010")
	web := verdicts["tenant-a/vm-instance-web"]
	require.True(t, web.Programmed, web.Message)
	require.Contains(t, web.Message, "bad-slice", "refused endpoints are reported by name")
}

func TestPlanReadsStandardInput(t *testing.T) {
	r := natplane(t, "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n", "plan", "-f", "-", "--node-name", "node-a", "-o", "json")
	require.Equal(t, exitDone, r.code, r.err)
	require.JSONEq(t, `{"node": "node-a", "translations": [], "verdicts": []}`, r.out)
}

func TestPlanForANodeThatIsNotThere(t *testing.T) {
	const node = "apiVersion: v1\nkind: Node\nmetadata: {name: node-a}\n"
	r := natplane(t, node, "plan", "-f", "-", "--node-name", "node-A", "-o", "json")
	require.Equal(t, exitDone, r.code)
	require.Contains(t, r.err, `"node-A"`)
	require.JSONEq(t, `{"node": "node-A", "translations": [], "verdicts": []}`, r.out)
	require.Empty(t, natplane(t, "", "plan", "-f", "-", "--node-name", "node-A").err, "without Node objects no name is wrong")
}

// Under policy Cluster a plan believes the manifests, or asks for the word of the other node's agent as an agent in a cluster does.
func TestPlanTrustsSlicesUnlessTold(t *testing.T) {
	const spread = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: a, labels: {service.kubernetes.io/service-proxy-name: natplane}, annotations: {networking.cozystack.io/wholeIP: "true"}}
spec: {type: LoadBalancer, externalTrafficPolicy: Cluster}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web, namespace: a, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
endpoints: [{addresses: [10.244.2.10], nodeName: node-b}]
`
	require.Contains(t, natplane(t, spread, "plan", "-f", "-", "--node-name", "node-a").out, "203.0.113.10 to 10.244.2.10")
	r := natplane(t, spread, "plan", "-f", "-", "--node-name", "node-a", "--trust-slices=false")
	require.Contains(t, r.out, "the agent of node node-b does not confirm")
}

func TestWrongUsage(t *testing.T) {
	for name, args := range map[string][]string{
		"no command":       {},
		"unknown command":  {"frobnicate"},
		"unknown flag":     {"plan", "--frobnicate"},
		"no file":          {"plan", "--node-name", "n"},
		"two files":        {"plan", "--node-name", "n", "-f", examples, "-f", examples},
		"no node":          {"plan", "-f", examples},
		"no port":          {"agent", "--node-name", "n", "--manifests", "d", "--http-address", "127.0.0.1"},
		"port of a name":   {"status", "--http-address", "localhost:metrics"},
		"port too high":    {"agent", "--node-name", "n", "--manifests", "d", "--http-address", "127.0.0.1:99999"},
		"bad output":       {"plan", "-f", examples, "--node-name", "n", "-o", "xml"},
		"bad prefix":       {"plan", "-f", examples, "--node-name", "n", "--cluster-cidr", "10.0.0.0/33"},
		"mapped prefix":    {"plan", "-f", examples, "--node-name", "n", "--public-cidr", "::ffff:10.0.0.0/104"},
		"empty proxy name": {"plan", "-f", examples, "--node-name", "n", "--proxy-name", ""},
		"long uplink":      {"plan", "-f", examples, "--node-name", "n", "--uplink", "an-interface-name-too-long"},
		"bad shard role":   {"plan", "-f", examples, "--node-name", "n", "--shard", "maybe"},
		"tenants anywhere": {"plan", "-f", examples, "--node-name", "n", "--tenant-interface", "*"},
		"tenant's table":   {"plan", "-f", examples, "--node-name", "n", "--tenant-interface", "tenant-*=254"},
		"tenant twice":     {"plan", "-f", examples, "--node-name", "n", "--tenant-interface", "t0", "--tenant-interface", "t0=7"},
		"stray argument":   {"version", "please"},
		"two sources":      {"agent", "--node-name", "n", "--manifests", "d", "--kubeconfig", "f"},
		"bad log level":    {"agent", "--node-name", "n", "--manifests", "d", "--log-level", "loud"},
	} {
		t.Run(name, func(t *testing.T) {
			r := natplane(t, "", args...)
			require.Equal(t, exitUsage, r.code, r.err)
			require.NotEmpty(t, r.err)
			require.Empty(t, r.out)
		})
	}
}

func TestFailuresNameTheirObject(t *testing.T) {
	r := natplane(t, "", "plan", "-f", "no/such/place", "--node-name", "n")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "no/such/place")

	r = natplane(t, "", "status", "--http-address", "127.0.0.1:1")
	require.Equal(t, exitFailed, r.code)
	require.Contains(t, r.err, "127.0.0.1:1")
	require.Contains(t, r.err, "is it running")
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"--help"}, {"agent", "--help"}, {"version"}} {
		r := natplane(t, "", args...)
		require.Equal(t, exitDone, r.code, args)
		require.NotEmpty(t, r.out, args)
	}
}
