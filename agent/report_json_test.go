// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/nft"
	"github.com/natplane/natplane/node"
)

// Scripts read the report: every field has a name in the style of Kubernetes, in every part of it.
func TestReportFieldsAreLowerCase(t *testing.T) {
	text, err := json.Marshal(Report{
		Translations: []TranslationReport{{Translation: nat.Translation{Ports: []nat.TranslatedPort{{}}}}},
		Verdicts:     []nat.Verdict{{}},
		Drops:        []nft.Counter{{}},
		Shards:       []ShardReport{{}},
		Warnings:     []node.Warning{{}},
	})
	require.NoError(t, err)
	var report any
	require.NoError(t, json.Unmarshal(text, &report))
	fields := 0
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, element := range v {
				look(element)
			}
		case map[string]any:
			for name, value := range v {
				fields++
				require.True(t, unicode.IsLower(rune(name[0])), "field %q", name)
				look(value)
			}
		}
	}
	look(report)
	require.Greater(t, fields, 40)
}
