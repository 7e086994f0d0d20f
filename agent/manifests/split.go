// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
)

// document is one YAML document or JSON value of a file.
type document struct {
	text   []byte
	number int // from 1
	line   int // where it starts in the file, from 1
}

// split finds the documents of a file. A file that starts with a brace is a stream of JSON values, unless JSON cannot read it:
// flow-style YAML starts with a brace too.
func split(data []byte) ([]document, error) {
	// Editors on Windows write a byte order mark, which JSON does not allow.
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		// The decoder would read it, but only up to the first separator.
		return nil, errors.New("the text is UTF-16: save it as UTF-8")
	}
	if utilyaml.IsJSONBuffer(data) {
		if docs, err := splitJSON(data); err == nil {
			return docs, nil
		}
	}
	return splitYAML(data)
}

func splitJSON(data []byte) ([]document, error) {
	var docs []document
	decoder := json.NewDecoder(bytes.NewReader(data))
	line, counted := 1, 0
	for {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(docs)+1, err)
		}
		start := int(decoder.InputOffset()) - len(raw)
		line += bytes.Count(data[counted:start], []byte("\n"))
		counted = start
		docs = append(docs, document{text: raw, number: len(docs) + 1, line: line})
	}
}

// splitYAML cuts at the lines that start with three dashes, as the reader of apimachinery does (its tests compare them). That one copies
// line by line, and took most of the time when one document of a large file changed.
func splitYAML(data []byte) ([]document, error) {
	var docs []document
	line := 1
	for len(data) > 0 {
		end := len(data)
		// A separator in the first line belongs to the document that it starts.
		if i := bytes.Index(data, []byte("\n---")); i >= 0 {
			end = i + 1
		}
		text := data[:end]
		if err := checkSeparator(text); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if after := afterEnd(text); after > 0 {
			return nil, fmt.Errorf("line %d: a document without a separator (---) before it", line+after)
		}
		if len(bytes.TrimSpace(text)) > 0 {
			docs = append(docs, document{text: text, number: len(docs) + 1, line: line})
		}
		line += bytes.Count(text, []byte("\n"))
		data = data[end:]
	}
	return docs, nil
}

// checkSeparator refuses what has content in the line of the separator: YAML allows it, other tools of Kubernetes do not.
func checkSeparator(text []byte) error {
	rest, found := bytes.CutPrefix(text, []byte("---"))
	if !found {
		return nil
	}
	rest, _, _ = bytes.Cut(rest, []byte("\n"))
	if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] != '#' {
		return fmt.Errorf("%q is no document separator", "---"+string(rest))
	}
	return nil
}

// afterEnd returns how many lines into a text something follows an end marker (...), 0 if nothing does: the decoder stops at the marker
// and would drop it.
func afterEnd(text []byte) int {
	const marker = "\n..."
	if !bytes.Contains(text, []byte(marker)) {
		return 0
	}
	ended, n := false, 0
	for line := range bytes.Lines(text) {
		word, _, _ := bytes.Cut(bytes.TrimRight(line, " \t\r\n"), []byte(" "))
		switch {
		case string(word) == marker[1:]:
			ended = true
		case ended && len(word) > 0 && word[0] != '#':
			return n
		}
		n++
	}
	return 0
}
