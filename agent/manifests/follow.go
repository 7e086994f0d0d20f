// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// shrinkWait is how long a file that became shorter in place must be left alone before that is believed. Programs that do not replace a
// file truncate it first, and what is cut off would be taken for removed objects.
const shrinkWait = 80 * time.Millisecond

// follower knows the files of a directory as they were read last. It belongs to one goroutine.
type follower struct {
	dir   string
	files map[string]*file
	signs map[string]signature
	// dirty names files that must be read even if their signature is the same: within one tick of the kernel's clock (up to 10 ms) a
	// second change of equal length leaves none.
	dirty    map[string]bool
	allDirty bool
}

func newFollower(dir string) *follower {
	return &follower{dir: dir, files: map[string]*file{}, signs: map[string]signature{}, dirty: map[string]bool{}}
}

// outcome is what a pass over the directory found.
type outcome struct {
	changed bool
	listed  bool
	fault   *Problem
	// again is set when a file is being written and has to be looked at again so much later.
	again time.Duration
}

// pass reads the files that changed. A missing directory leaves everything as it was.
func (f *follower) pass() outcome {
	names, err := list(f.dir)
	if err != nil {
		message := err.Error()
		if len(f.files) > 0 {
			message += "; its last good content stays in force"
		}
		return outcome{fault: &Problem{File: f.dir, Message: message}}
	}
	out := outcome{listed: true}
	dirty, all := f.dirty, f.allDirty
	f.dirty, f.allDirty = map[string]bool{}, false
	present := make(map[string]bool, len(names))
	for _, name := range names {
		present[name] = true
		f.refresh(name, all || dirty[name], &out)
	}
	for name := range f.files {
		if !present[name] {
			delete(f.files, name)
			delete(f.signs, name)
			out.changed = true
		}
	}
	return out
}

func (f *follower) refresh(name string, dirty bool, out *outcome) {
	path := filepath.Join(f.dir, name)
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, lerr := os.Lstat(path); errors.Is(lerr, fs.ErrNotExist) {
			// Removed since the directory was listed; the event of that is on its way.
			out.again = max(out.again, time.Millisecond)
			return
		}
	}
	if err != nil {
		f.refuse(name, path, err, out)
		return
	}
	sign, known := sign(info), f.signs[name]
	if sign == known && !dirty {
		return
	}
	if wait := shrinkWait - time.Since(sign.modified); sign.sameFile(known) && sign.size < known.size && wait > 0 && wait <= shrinkWait {
		f.later(name, wait, out)
		return
	}
	data, sign, err := readFile(path)
	switch {
	case errors.Is(err, errWritten):
		f.later(name, quiet, out)
	case err != nil:
		f.refuse(name, path, err, out)
	default:
		f.files[name] = parse(path, data, f.files[name])
		f.signs[name] = sign
		out.changed = true
	}
}

// later leaves a file as it was read last. One that was never read makes the listing incomplete.
func (f *follower) later(name string, wait time.Duration, out *outcome) {
	f.dirty[name] = true
	out.again = max(out.again, wait)
	if f.files[name] == nil {
		out.listed = false
	}
}

func (f *follower) refuse(name, path string, err error, out *outcome) {
	previous := f.files[name]
	if previous == nil {
		previous = &file{}
	}
	f.files[name] = previous.unreadable(path, err)
	// The zero signature has it read as soon as it can be.
	f.signs[name] = signature{}
	out.changed = true
}
