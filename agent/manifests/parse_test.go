// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

func manyServices(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata:
  name: vm-%d
  namespace: tenant-a
  creationTimestamp: "2026-08-01T10:00:00Z"
  labels:
    app.kubernetes.io/name: vm-instance
    app.kubernetes.io/instance: vm-%d
    service.kubernetes.io/service-proxy-name: cozy-proxy
  annotations:
    networking.cozystack.io/wholeIP: "true"
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  allocateLoadBalancerNodePorts: false
  selector: {app.kubernetes.io/name: vm-instance, app.kubernetes.io/instance: vm-%d}
  ports: [{port: 65535}]
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.10, ipMode: VIP}]
---
`, i, i, i)
	}
	return b.String()
}

func TestParseDecodesOnlyWhatChanged(t *testing.T) {
	text := manyServices(3)
	before := parse("f", []byte(text), nil)
	after := parse("f", []byte(strings.Replace(text, "name: vm-1\n", "name: vm-9\n", 1)), before)
	require.Len(t, after.objects, 3)
	require.Same(t, before.objects[0].obj, after.objects[0].obj)
	require.NotSame(t, before.objects[1].obj, after.objects[1].obj)
	require.Same(t, before.objects[2].obj, after.objects[2].obj)
	require.Len(t, after.decoded, 4, "documents that are gone are forgotten; the fourth is the separator at the end")
}

// wholeReader is the document reader of apimachinery, as the measure for ours.
func wholeReader(data []byte) (docs []string, err error) {
	// The room for all of it is for a last line that just fills the buffer, which the reader would drop.
	reader := utilyaml.NewYAMLReader(bufio.NewReaderSize(bytes.NewReader(data), len(data)+2))
	for {
		doc, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, err
		}
		if text := comparable(doc); text != "" {
			docs = append(docs, text)
		}
	}
}

// comparable takes away what the two readers treat differently and YAML does not care for: separators and the kind of line ends.
func comparable(doc []byte) string {
	if bytes.HasPrefix(doc, []byte("---")) {
		_, doc, _ = bytes.Cut(doc, []byte("\n"))
	}
	lines := strings.Split(string(doc), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], "\r")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

func FuzzSplitYAML(f *testing.F) {
	f.Add([]byte("---\na: 1\n---\n---\n# x\n--- # y\r\nb: 2\r\n---"))
	f.Add([]byte("a\n----\n"))
	f.Add([]byte("a\n---b\n"))
	f.Add([]byte("\n---\n\na"))
	f.Fuzz(func(t *testing.T, data []byte) {
		want, wantErr := wholeReader(data)
		docs, err := splitYAML(data)
		require.Equal(t, wantErr == nil, err == nil, "%v, %v", wantErr, err)
		if err != nil {
			return
		}
		var got []string
		for _, doc := range docs {
			// Lines are those of the file.
			require.True(t, bytes.HasPrefix(data[lineStart(data, doc.line):], doc.text))
			if text := comparable(doc.text); text != "" {
				got = append(got, text)
			}
		}
		require.Equal(t, want, got)
	})
}

func lineStart(data []byte, line int) int {
	at := 0
	for range line - 1 {
		at += bytes.IndexByte(data[at:], '\n') + 1
	}
	return at
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"vm-instances.yaml", "egressshard.yaml"} {
		data, err := os.ReadFile(filepath.Join("../../deploy/examples", name))
		require.NoError(f, err)
		f.Add(data, data[:len(data)/2])
	}
	f.Add([]byte("---\n# c\n---\r\na: [\n"), []byte("{\"kind\":\"List\",\"apiVersion\":\"v1\",\"items\":[{}]}{}"))
	f.Add([]byte("a: &a [*a]\n"), []byte("kind: Pod\napiVersion: v1\nmetadata: {name: x}\nspec: 1\n"))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		before := parse("f", first, nil)
		after := parse("f", second, before)
		for _, version := range []*file{before, after} {
			objects, problems := collect(map[string]*file{"f": version})
			seen := map[ref]bool{}
			for _, o := range version.objects {
				require.NotNil(t, o.obj)
				require.Equal(t, o.ref.key.Name, o.obj.GetName())
				require.Equal(t, o.ref.key.Namespace, o.obj.GetNamespace())
				seen[o.ref] = true
			}
			require.Equal(t, len(seen), objects.Len())
			for _, p := range problems {
				require.NotEmpty(t, p.Message)
			}
		}
		// Reading the same again finds the same, whatever was kept.
		require.Equal(t, len(after.objects), len(parse("f", second, after).objects))
	})
}

func BenchmarkParseCold10k(b *testing.B) {
	data := []byte(manyServices(10_000))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		parse("f", data, nil)
	}
}

func BenchmarkParseOneChanged10k(b *testing.B) {
	text := manyServices(10_000)
	known := parse("f", []byte(text), nil)
	data := []byte(strings.Replace(text, "name: vm-5000\n", "name: vm-x\n", 1))
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		parse("f", data, known)
	}
}

func BenchmarkUnion10k(b *testing.B) {
	f := parse("f", []byte(manyServices(10_000)), nil)
	for b.Loop() {
		union(map[string]*file{"f": f})
	}
}
