// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

// table is a Markdown table under a line that says what is in it.
type table struct {
	caption string
	head    []string
	rows    [][]string
}

func newTable(caption string, head ...string) *table { return &table{caption: caption, head: head} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func render(tables []*table) string {
	var b strings.Builder
	for i, t := range tables {
		if i > 0 {
			b.WriteByte('\n')
		}
		if t.caption != "" {
			fmt.Fprintf(&b, "%s\n\n", t.caption)
		}
		row(&b, t.head)
		row(&b, slicesOf("---", len(t.head)))
		for _, r := range t.rows {
			row(&b, r)
		}
	}
	return b.String()
}

func row(b *strings.Builder, cells []string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) }

func slicesOf(s string, n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = s
	}
	return list
}

// writeSection replaces what stands between the markers of a section.
func writeSection(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	updated, err := replaceSection(string(old), name, text)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return os.WriteFile(path, []byte(updated), 0o644)
}

func replaceSection(document, name, text string) (string, error) {
	begin, end := fmt.Sprintf("<!-- bench: %s -->\n", name), fmt.Sprintf("<!-- end: %s -->\n", name)
	before, rest, found := strings.Cut(document, begin)
	if !found {
		return "", fmt.Errorf("no line %q", strings.TrimSpace(begin))
	}
	_, after, found := strings.Cut(rest, end)
	if !found {
		return "", fmt.Errorf("no line %q", strings.TrimSpace(end))
	}
	return before + begin + text + end + after, nil
}
