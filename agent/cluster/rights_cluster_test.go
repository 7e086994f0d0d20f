// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package cluster_test

import (
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// granted lists the rights of the deployed ClusterRole in the form of right.
func granted(t *testing.T) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(roleFile)
	require.NoError(t, err)
	var role rbacv1.ClusterRole
	require.NoError(t, yaml.UnmarshalStrict(text, &role))
	rights := map[string]bool{}
	for _, rule := range role.Rules {
		require.Empty(t, rule.NonResourceURLs)
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights[verb+" "+group+"/"+resource] = true
				}
			}
		}
	}
	return rights
}

// withoutStreamedLists answers as a server does that knows no streamed lists.
func withoutStreamedLists(req *http.Request) (*http.Response, error) {
	if req.URL.Query().Get("sendInitialEvents") == "" {
		return nil, nil
	}
	body := `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422,"message":"sendInitialEvents is forbidden"}`
	return &http.Response{
		StatusCode: http.StatusUnprocessableEntity, Status: "422 Unprocessable Entity", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: req,
	}, nil
}
