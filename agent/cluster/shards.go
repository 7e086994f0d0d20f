// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servesShards asks the discovery document of the group version, which the server has in memory and lets every account read.
func (c *clients) servesShards(ctx context.Context) (bool, error) {
	r := shardResource()
	path := "/apis/" + r.GroupVersion().String()
	raw, err := c.core.RESTClient().Get().AbsPath(path).SetHeader("Accept", jsonType).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", path, err)
	}
	var list metav1.APIResourceList
	if err := json.Unmarshal(raw, &list); err != nil {
		return false, fmt.Errorf("%s: %w", path, err)
	}
	return slices.ContainsFunc(list.APIResources, func(a metav1.APIResource) bool { return a.Name == r.Resource }), nil
}
