// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"regexp"
	"runtime"
	"strconv"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// file is what one file says, with what stays in force from before where it is broken.
type file struct {
	path     string
	decoded  map[digest][]item
	objects  []placed
	problems []Problem
}

// placed is an object and where it is written.
type placed struct {
	ref            ref
	obj            metav1.Object
	document, line int
}

type digest [sha256.Size]byte

// parse reads a file. The previous version, if any, spares the decoding of unchanged documents and lends what stays in force.
func parse(path string, data []byte, previous *file) *file {
	if previous == nil {
		previous = &file{}
	}
	docs, err := split(data)
	if err != nil {
		return previous.unreadable(path, err)
	}
	f := &file{path: path, decoded: make(map[digest][]item, len(docs))}
	sums := f.decode(docs, previous.decoded)
	merge := merger{file: f, previous: previous}
	merge.collect(docs, sums)
	merge.keepOld()
	return f
}

// unreadable keeps everything that the file said before.
func (f *file) unreadable(path string, err error) *file {
	message := err.Error()
	if len(f.objects) > 0 {
		message += "; its last good content stays in force"
	}
	return &file{path: path, decoded: f.decoded, objects: f.objects, problems: []Problem{{File: path, Message: message}}}
}

// decode fills f.decoded and returns the key of each document in it.
func (f *file) decode(docs []document, known map[digest][]item) []digest {
	sums := make([]digest, len(docs))
	var missing []int
	for i, doc := range docs {
		sums[i] = sha256.Sum256(doc.text)
		if _, done := f.decoded[sums[i]]; done {
			continue
		}
		items, found := known[sums[i]]
		f.decoded[sums[i]] = items
		if !found {
			missing = append(missing, i)
		}
	}
	results := make([][]item, len(missing))
	var group errgroup.Group
	workers := min(runtime.GOMAXPROCS(0), len(missing))
	for w := range workers {
		group.Go(func() error {
			for n := w; n < len(missing); n += workers {
				results[n] = decodeDocument(docs[missing[n]].text)
			}
			return nil
		})
	}
	_ = group.Wait() // the workers return no error: faults are part of the items
	for n, i := range missing {
		f.decoded[sums[i]] = results[n]
	}
	return sums
}

// merger puts the objects of a new version of a file together with those of the previous version that stay in force.
type merger struct {
	file, previous *file
	anonymous      bool
	broken         []int    // the problems that are about a known object
	at             []placed // those objects
}

func (m *merger) collect(docs []document, sums []digest) {
	for i, doc := range docs {
		for _, it := range m.file.decoded[sums[i]] {
			where := placed{ref: it.ref, obj: it.obj, document: doc.number, line: doc.line}
			if it.err == nil {
				m.file.objects = append(m.file.objects, where)
				continue
			}
			m.fault(it, where, doc)
		}
	}
}

func (m *merger) fault(it item, where placed, doc document) {
	p := Problem{File: m.file.path, Document: doc.number, Line: doc.line, Object: it.label, Message: inFile(it.err, doc)}
	if it.anonymous {
		m.anonymous = true
		if len(m.previous.objects) > 0 {
			p.Message += "; no object of this file is removed until this is repaired"
		}
	}
	if it.ref != (ref{}) {
		p.Object = it.ref.String()
		m.broken, m.at = append(m.broken, len(m.file.problems)), append(m.at, where)
	}
	m.file.problems = append(m.file.problems, p)
}

// keepOld adds the last good versions of broken objects, and of all objects that a document without a name might stand for.
func (m *merger) keepOld() {
	if len(m.broken) == 0 && !m.anonymous {
		return
	}
	old := make(map[ref]placed, len(m.previous.objects))
	for _, o := range m.previous.objects {
		if _, twice := old[o.ref]; !twice {
			old[o.ref] = o
		}
	}
	named := make(map[ref]bool, len(m.file.objects))
	for _, o := range m.file.objects {
		named[o.ref] = true
	}
	for n, where := range m.at {
		last, had := old[where.ref]
		if named[where.ref] || !had {
			continue
		}
		named[where.ref] = true
		m.file.problems[m.broken[n]].Message += "; its last good version stays in force"
		where.obj = last.obj
		m.file.objects = append(m.file.objects, where)
	}
	if !m.anonymous {
		return
	}
	for _, o := range m.previous.objects {
		if !named[o.ref] {
			named[o.ref] = true
			m.file.objects = append(m.file.objects, o)
		}
	}
}

// inFile turns the line numbers of a YAML error, which count from the start of the document, into those of the file.
func inFile(err error, doc document) string {
	if doc.line <= 1 || bytes.HasPrefix(bytes.TrimSpace(doc.text), []byte("{")) {
		return err.Error()
	}
	return regexp.MustCompile(`\bline (\d+)`).ReplaceAllStringFunc(err.Error(), func(s string) string {
		n, convErr := strconv.Atoi(s[len("line "):])
		if convErr != nil {
			return s
		}
		return fmt.Sprintf("line %d", n+doc.line-1)
	})
}
