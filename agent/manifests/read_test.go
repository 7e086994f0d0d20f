// SPDX-License-Identifier: Apache-2.0

package manifests_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/agent/manifests"
	"github.com/natplane/natplane/nat"
)

func TestReadExamples(t *testing.T) {
	objects, problems, err := manifests.Read(examples)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Len(t, objects.Services, 4)
	require.Len(t, objects.Slices, 5)
	require.Len(t, objects.Pods, 2)
	require.Len(t, objects.Nodes, 2)
	require.Len(t, objects.Shards, 1)

	web := objects.Services[key("vm-instance-web")]
	require.Equal(t, "2001:db8:203::10", web.Status.LoadBalancer.Ingress[1].IP)
	require.Equal(t, []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, objects.Nodes["node-a"].Spec.PodCIDRs)
	shard := objects.Shards[nat.Key{Namespace: "galactic-system", Name: "node-a-egress"}]
	require.Equal(t, "2001:db8:203::200", shard.Spec.ShardAddressIPv6)
	require.Equal(t, "node-a", shard.Spec.TargetRef.Name)
}

func TestReadSingleFileWhateverItsName(t *testing.T) {
	path := filepath.Join(t.TempDir(), "objects")
	write(t, path, service("web", "203.0.113.1"))
	objects, problems, err := manifests.Read(path)
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, 1, objects.Len())
}

func TestReadMissingPathIsAnError(t *testing.T) {
	_, _, err := manifests.Read(filepath.Join(t.TempDir(), "nothing"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestReadForms(t *testing.T) {
	const a, b = "203.0.113.1", "203.0.113.2"
	jsonA := `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"tenant-a"},"spec":{"loadBalancerIP":"` + a + `"}}`
	jsonB := strings.NewReplacer(`"a"`, `"b"`, a, b).Replace(jsonA)
	item := func(name, ip string) string {
		return "- metadata: {name: " + name + ", namespace: tenant-a}\n  spec: {loadBalancerIP: " + ip + "}\n"
	}
	forms := map[string]string{
		"documents":           service("a", a) + "---\n" + service("b", b),
		"separator first":     "---\n" + service("a", a) + "---\n" + service("b", b),
		"empty and comments":  "# nothing\n---\n---\n# still nothing\n---\n" + service("a", a) + "--- # the other\n\n---\n" + service("b", b) + "---\n",
		"windows line ends":   strings.ReplaceAll("---\n"+service("a", a)+"---\n"+service("b", b), "\n", "\r\n"),
		"byte order mark":     "\xef\xbb\xbf" + service("a", a) + "---\n" + service("b", b),
		"no last line end":    service("a", a) + "---\n" + strings.TrimSuffix(service("b", b), "\n"),
		"json stream":         jsonA + "\n" + jsonB,
		"json glued":          jsonA + jsonB,
		"json as yaml":        jsonA + "\n---\n" + jsonB,
		"flow style":          "{apiVersion: v1, kind: Service, metadata: {name: a, namespace: tenant-a}, spec: {loadBalancerIP: " + a + "}}\n---\n" + service("b", b),
		"list":                "apiVersion: v1\nkind: List\nitems:\n- " + jsonA + "\n- " + jsonB + "\n",
		"json list":           `{"apiVersion":"v1","kind":"List","items":[` + jsonA + "," + jsonB + `]}`,
		"service list":        "apiVersion: v1\nkind: ServiceList\nmetadata: {resourceVersion: \"7\"}\nitems:\n" + item("a", a) + item("b", b),
		"empty list too":      "apiVersion: v1\nkind: List\nitems: []\n---\n" + service("a", a) + "---\n" + service("b", b),
		"unknown fields":      strings.Replace(service("a", a), "spec: {", "newField: {x: 1}\nspec: {newer: [true], ", 1) + "---\n" + service("b", b),
		"end markers":         service("a", a) + "...\n# done\n\n---\n" + service("b", b) + "... # really\n",
		"ellipsis in a text":  strings.Replace(service("a", a), "spec:", "x: |\n  ...\n  text\ny: ...\nspec:", 1) + "---\n" + service("b", b),
		"separator in a text": strings.Replace(service("a", a), "spec:", "x: |\n  ---\n  text\nspec:", 1) + "---\n" + service("b", b),
	}
	for name, text := range forms {
		t.Run(name, func(t *testing.T) {
			objects, problems, err := manifests.ReadFrom(strings.NewReader(text), "input")
			require.NoError(t, err)
			require.Empty(t, problems)
			require.Equal(t, 2, objects.Len())
			require.Equal(t, a, objects.Services[key("a")].Spec.LoadBalancerIP)
			require.Equal(t, b, objects.Services[key("b")].Spec.LoadBalancerIP)
		})
	}
}

func TestReadNamespaces(t *testing.T) {
	objects, problems, err := manifests.ReadFrom(strings.NewReader(
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Node\nmetadata: {name: node-a, namespace: odd}\n"), "input")
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, "default", objects.Pods[nat.Key{Namespace: "default", Name: "a"}].Namespace)
	require.Contains(t, objects.Nodes, "node-a")
}

func TestReadProblems(t *testing.T) {
	const good = "apiVersion: v1\nkind: Node\nmetadata: {name: good}\n---\n"
	cases := map[string]struct{ text, want string }{
		"syntax":          {"a: [1\nb: 2\n", "f:4: document 2: yaml: line 5: did not find expected ',' or ']'"},
		"no kind":         {"apiVersion: v1\nmetadata: {name: x}\n", "f:4: document 2: x: no kind"},
		"kind in capital": {"apiVersion: v1\nKind: Service\nmetadata: {name: x}\n", "f:4: document 2: x: no kind"},
		"unknown kind":    {"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "f:4: document 2: ConfigMap x: kind ConfigMap (v1) is not read here"},
		"no name":         {"apiVersion: v1\nkind: Service\nmetadata: {generateName: x-}\n", "f:4: document 2: Service: no metadata.name"},
		"bad name":        {"apiVersion: v1\nkind: Service\nmetadata: {name: \"a/b\"}\n", "f:4: document 2: Service a/b: metadata.name: a lowercase RFC 1123 subdomain must"},
		"wrong version": {"apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: x}\n",
			`f:4: document 2: EndpointSlice default/x: apiVersion "discovery.k8s.io/v1beta1" of EndpointSlice is not read here: want discovery.k8s.io/v1`},
		"type": {"apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: \"80\"}]}\n",
			"f:4: document 2: Service default/x: json: cannot unmarshal string into Go struct field ServicePort.spec.ports.port of type int32"},
		"annotation without quotes": {"apiVersion: v1\nkind: Service\nmetadata: {name: x, annotations: {networking.cozystack.io/wholeIP: true}}\n",
			"f:4: document 2: Service default/x: json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.annotations of type string"},
		"field twice":      {"apiVersion: v1\nkind: Service\nkind: Pod\nmetadata: {name: x}\n", `key "kind" already set`},
		"scalar":           {"just text\n", "f:4: document 2: not an object"},
		"sequence":         {"- a\n", "f:4: document 2: not an object"},
		"item of a list":   {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Secret, metadata: {name: s}}\n", "f:4: document 2: item 1 Secret s: kind Secret (v1) is not read here"},
		"item of nothing":  {"apiVersion: v1\nkind: PodList\nitems:\n- null\n", "f:4: document 2: item 1: not an object"},
		"list of unknown":  {"apiVersion: v1\nkind: SecretList\nitems: []\n", "kind SecretList (v1) is not read here"},
		"list in a list":   {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: List, items: []}\n", "item 1 List: kind List (v1) is not read here"},
		"list version":     {"apiVersion: v2\nkind: ServiceList\nitems: []\n", `apiVersion "v2" of ServiceList is not read here: want v1`},
		"twice in a file":  {"apiVersion: v1\nkind: Node\nmetadata: {name: good}\n", "f:4: document 2: Node good: defined before in f, document 1 (line 1), which stays in force"},
		"label is no list": {"apiVersion: v1\nkind: Pod\nmetadata: {name: [x]}\n", "f:4: document 2: json: cannot unmarshal array into Go struct field"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objects, problems, err := manifests.ReadFrom(strings.NewReader(good+c.text), "f")
			require.NoError(t, err)
			require.Equal(t, 1, objects.Len())
			require.Contains(t, objects.Nodes, "good")
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].String(), c.want)
		})
	}
}

func TestReadFileThatCannotBeSplit(t *testing.T) {
	objects, problems, err := manifests.ReadFrom(strings.NewReader(service("a", "203.0.113.1")+"---b: c\n"), "f")
	require.NoError(t, err)
	require.Zero(t, objects.Len())
	require.Equal(t, []string{`f: line 5: "---b: c" is no document separator`}, texts(problems))
}

// What the decoder would leave out without a word is refused: no object may go missing like that.
func TestReadRefusesWhatWouldBeDropped(t *testing.T) {
	text := service("a", "203.0.113.1") + "---\n" + service("b", "203.0.113.2")
	wide := []byte{0xff, 0xfe}
	for _, b := range []byte(text) {
		wide = append(wide, b, 0)
	}
	for name, c := range map[string]struct{ text, want string }{
		"UTF-16":           {string(wide), "f: the text is UTF-16: save it as UTF-8"},
		"after the end":    {strings.Replace(text, "---\n", "...\n", 1), "f: line 6: a document without a separator (---) before it"},
		"in a later part":  {text + "...\n\n" + service("c", "203.0.113.3"), "f: line 12: a document without a separator (---) before it"},
		"windows line end": {strings.ReplaceAll(text+"...\n"+service("c", "203.0.113.3"), "\n", "\r\n"), "f: line 11: a document"},
	} {
		t.Run(name, func(t *testing.T) {
			objects, problems, err := manifests.ReadFrom(strings.NewReader(c.text), "f")
			require.NoError(t, err)
			require.Zero(t, objects.Len())
			require.Len(t, problems, 1)
			require.Contains(t, problems[0].String(), c.want)
		})
	}
}

func TestReadFirstDefinitionCounts(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "20.yaml"), service("web", "203.0.113.2"))
	write(t, filepath.Join(dir, "10.yml"), "---\n"+service("web", "203.0.113.1")+"---\n"+service("web", "203.0.113.3"))
	write(t, filepath.Join(dir, "30.json"), "{")
	write(t, filepath.Join(dir, "readme.txt"), "no manifest")
	write(t, filepath.Join(dir, ".hidden.yaml"), service("hidden", "203.0.113.4"))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "sub.yaml"), 0o700))
	objects, problems, err := manifests.Read(dir)
	require.NoError(t, err)
	require.Equal(t, 1, objects.Len())
	require.Equal(t, "203.0.113.1", objects.Services[key("web")].Spec.LoadBalancerIP)
	want := []string{
		dir + "/10.yml:6: document 2: Service tenant-a/web: defined before in 10.yml, document 1 (line 1), which stays in force",
		dir + "/20.yaml:1: document 1: Service tenant-a/web: defined before in 10.yml, document 1 (line 1), which stays in force",
		dir + "/30.json:1: document 1: yaml: line 1: did not find expected node content",
	}
	require.Empty(t, cmp.Diff(want, texts(problems)))
}
