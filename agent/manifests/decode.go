// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/natplane/natplane/nat"
)

// item is what one object of a document became.
type item struct {
	ref ref
	// obj is nil when err is set.
	obj metav1.Object
	err error
	// label says which object is meant when ref does not: the position in a list, or the kind and name of something else.
	label string
	// anonymous is set when the item might stand for any object.
	anonymous bool
}

// header is the part of every object that tells what it is.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

func (h header) label() string {
	name := h.Metadata.Name
	if h.Metadata.Namespace != "" {
		name = h.Metadata.Namespace + "/" + name
	}
	return strings.TrimSpace(h.Kind + " " + name)
}

var errNoObject = errors.New("not an object: a mapping with apiVersion, kind and metadata is expected")

// decodeDocument reads the objects of a document: none when it is empty, several when it is a list.
func decodeDocument(text []byte) []item {
	raw := text
	if !json.Valid(text) {
		var err error
		// Strict refuses a field that is written twice, of which one would silently not count.
		if raw, err = yaml.YAMLToJSONStrict(text); err != nil {
			return []item{{err: err, anonymous: true}}
		}
	}
	raw = bytes.TrimSpace(raw)
	switch {
	case bytes.Equal(raw, []byte("null")):
		return nil
	case !utilyaml.IsJSONBuffer(raw):
		return []item{{err: errNoObject, anonymous: true}}
	}
	var head header
	if err := utiljson.Unmarshal(raw, &head); err != nil {
		return []item{{err: err, anonymous: true}}
	}
	if strings.HasSuffix(head.Kind, "List") {
		return decodeList(head, raw)
	}
	return []item{decodeObject(head, raw)}
}

// decodeList reads "kind: List" and the typed lists, whose items need no kind of their own.
func decodeList(head header, raw []byte) []item {
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := utiljson.Unmarshal(raw, &list); err != nil {
		return []item{{err: err, label: head.Kind, anonymous: true}}
	}
	kind := strings.TrimSuffix(head.Kind, "List")
	version, known := apiVersions()[kind]
	switch {
	case kind == "":
		version = "v1"
	case !known:
		return []item{{err: unknownKind(head), label: head.label()}}
	}
	if head.APIVersion != version {
		return []item{{err: wrongVersion(head, version), label: head.Kind, anonymous: true}}
	}
	items := make([]item, 0, len(list.Items))
	for i, raw := range list.Items {
		items = append(items, decodeListed(i+1, kind, version, raw))
	}
	return items
}

func decodeListed(position int, kind, version string, raw []byte) item {
	var head header
	var it item
	if !utilyaml.IsJSONBuffer(raw) {
		it = item{err: errNoObject, anonymous: true}
	} else if err := utiljson.Unmarshal(raw, &head); err != nil {
		it = item{err: err, anonymous: true}
	} else {
		if kind != "" && head.Kind == "" && head.APIVersion == "" {
			head.Kind, head.APIVersion = kind, version
		}
		it = decodeObject(head, raw)
	}
	if it.err != nil && it.ref == (ref{}) {
		it.label = strings.TrimSpace(fmt.Sprintf("item %d %s", position, it.label))
	}
	return it
}

func decodeObject(head header, raw []byte) item {
	if head.Kind == "" {
		return item{err: errors.New("no kind"), label: head.label(), anonymous: true}
	}
	version, known := apiVersions()[head.Kind]
	if !known {
		return item{err: unknownKind(head), label: head.label()}
	}
	r, err := head.ref()
	if err != nil {
		return item{err: err, label: head.label(), anonymous: true}
	}
	if head.APIVersion != version {
		return item{ref: r, err: wrongVersion(head, version)}
	}
	obj := newObject(head.Kind)
	if err := utiljson.Unmarshal(raw, obj); err != nil {
		return item{ref: r, err: err}
	}
	obj.SetNamespace(r.key.Namespace)
	return item{ref: r, obj: obj}
}

// ref checks names as the API server does, because they end up in comments of the kernel's rules.
func (h header) ref() (ref, error) {
	if h.Metadata.Name == "" {
		return ref{}, errors.New("no metadata.name")
	}
	if faults := validation.IsDNS1123Subdomain(h.Metadata.Name); len(faults) > 0 {
		return ref{}, fmt.Errorf("metadata.name: %s", faults[0])
	}
	if h.Kind == "Node" {
		return ref{kind: h.Kind, key: nat.Key{Name: h.Metadata.Name}}, nil
	}
	namespace := h.Metadata.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	if faults := validation.IsDNS1123Label(namespace); len(faults) > 0 {
		return ref{}, fmt.Errorf("metadata.namespace: %s", faults[0])
	}
	return ref{kind: h.Kind, key: nat.Key{Namespace: namespace, Name: h.Metadata.Name}}, nil
}

func unknownKind(head header) error {
	return fmt.Errorf("kind %s (%s) is not read here", head.Kind, head.APIVersion)
}

func wrongVersion(head header, want string) error {
	return fmt.Errorf("apiVersion %q of %s is not read here: want %s", head.APIVersion, head.Kind, want)
}
