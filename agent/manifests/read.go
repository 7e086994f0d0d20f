// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/natplane/natplane/nat"
)

// Stdin is the path that stands for the standard input.
const Stdin = "-"

// Read reads a file, the files of a directory or, for "-", the standard input once. The error is for a path that cannot be read at
// all; faults of single files and objects are problems, and the rest of the objects is returned.
func Read(path string) (nat.Objects, []Problem, error) {
	if path == Stdin {
		return ReadFrom(os.Stdin, "stdin")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nat.Objects{}, nil, err
	}
	if !info.IsDir() {
		// A path named by hand may be a pipe, as in -f <(command); any name will do.
		data, err := os.ReadFile(path)
		if err != nil {
			return nat.Objects{}, nil, err
		}
		objects, problems := collect(map[string]*file{path: parse(path, data, nil)})
		return objects, problems, nil
	}
	names, err := list(path)
	if err != nil {
		return nat.Objects{}, nil, err
	}
	files := make(map[string]*file, len(names))
	for _, name := range names {
		full := filepath.Join(path, name)
		data, _, err := readFile(full)
		if err != nil {
			files[name] = (&file{}).unreadable(full, err)
			continue
		}
		files[name] = parse(full, data, nil)
	}
	objects, problems := collect(files)
	return objects, problems, nil
}

// ReadFrom reads one stream once; the name is for problems.
func ReadFrom(r io.Reader, name string) (nat.Objects, []Problem, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nat.Objects{}, nil, fmt.Errorf("%s: %w", name, err)
	}
	objects, problems := collect(map[string]*file{name: parse(name, data, nil)})
	return objects, problems, nil
}

func collect(files map[string]*file) (nat.Objects, []Problem) {
	all, problems := union(files)
	objects := nat.NewObjects()
	for r, d := range all {
		put(objects, r, d.obj)
	}
	return objects, problems
}
