// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// definition is an object and the file that it is in force from.
type definition struct {
	placed
	path string
}

// union puts the files together: of several definitions of an object the first counts, by file name and then by position.
func union(files map[string]*file) (map[ref]definition, []Problem) {
	size := 0
	for _, f := range files {
		size += len(f.objects)
	}
	objects := make(map[ref]definition, size)
	var problems []Problem
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		problems = append(problems, f.problems...)
		for _, o := range f.objects {
			if first, taken := objects[o.ref]; taken {
				problems = append(problems, f.repeated(o, first))
				continue
			}
			objects[o.ref] = definition{placed: o, path: f.path}
		}
	}
	return objects, problems
}

func (f *file) repeated(o placed, first definition) Problem {
	return Problem{File: f.path, Document: o.document, Line: o.line, Object: o.ref.String(),
		Message: fmt.Sprintf("defined before in %s, document %d (line %d), which stays in force",
			filepath.Base(first.path), first.document, first.line)}
}
