// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSectionIsReplacedInPlace(t *testing.T) {
	document := "above\n<!-- bench: a -->\nold\n<!-- end: a -->\nbetween\n<!-- bench: b -->\n<!-- end: b -->\nbelow\n"
	tables := []*table{{caption: "words", head: []string{"x", "y"}, rows: [][]string{{"1", "2"}}}}
	want := "above\n<!-- bench: a -->\nwords\n\n| x | y |\n| --- | --- |\n| 1 | 2 |\n<!-- end: a -->\n" +
		"between\n<!-- bench: b -->\n<!-- end: b -->\nbelow\n"
	for range 2 {
		var err error
		document, err = replaceSection(document, "a", render(tables))
		require.NoError(t, err)
		require.Equal(t, want, document)
	}
	_, err := replaceSection(document, "c", "")
	require.ErrorContains(t, err, "bench: c")
	_, err = replaceSection("<!-- bench: a -->\n", "a", "")
	require.ErrorContains(t, err, "end: a")
}

func TestSpread(t *testing.T) {
	values := []float64{9, 1, 5, 3, 7}
	require.Equal(t, spread{median: 5, low: 3, high: 7}, quartiles(values))
	require.Equal(t, []float64{9, 1, 5, 3, 7}, values, "the caller's order stays")
	require.Equal(t, 9.0, percentile(values, 0.99))
	require.Equal(t, 4.0, percentile([]float64{3, 5}, 0.5))
	require.Equal(t, "0.512 (0.250–1.50)", spread{0.5123, 0.25, 1.4999}.String())
	require.Equal(t, "51.2 (25.0–12345)", spread{51.23, 25, 12345.4}.String())
}
