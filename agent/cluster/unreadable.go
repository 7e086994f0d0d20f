// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/natplane/natplane/nat"
)

// unreadableShard stands for a shard whose fields have other types than the contract gives them, which only a foreign CRD lets through. It
// names no node, so nobody programs it.
type unreadableShard struct {
	*nat.EgressShard
	// why says which field it is.
	why string
}

func newUnreadableShard(o *unstructured.Unstructured, err error) *unreadableShard {
	return &unreadableShard{&nat.EgressShard{ObjectMeta: metav1.ObjectMeta{
		Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
		CreationTimestamp: o.GetCreationTimestamp(),
	}}, wrongField(o, err)}
}

// wrongField says what of an object is not as the contract has it. The error of the conversion names no field, that of encoding/json does.
func wrongField(o *unstructured.Unstructured, err error) string {
	text, encodeErr := json.Marshal(o.Object)
	if encodeErr != nil {
		return err.Error()
	}
	var wrong *json.UnmarshalTypeError
	if !errors.As(json.Unmarshal(text, &nat.EgressShard{}), &wrong) {
		return err.Error()
	}
	want := wrong.Type.String()
	if wrong.Type.Kind() == reflect.Struct {
		want = "object"
	}
	return fmt.Sprintf("%s is of type %s instead of %s", wrong.Field, wrong.Value, want)
}

// shardOf returns the shard that a stored object is, readable or not; nil for an object of another kind.
func shardOf(object metav1.Object) *nat.EgressShard {
	switch o := object.(type) {
	case *nat.EgressShard:
		return o
	case *unreadableShard:
		return o.EgressShard
	}
	return nil
}
