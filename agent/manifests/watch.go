// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

// watch asks the kernel for events of one directory, also when that is replaced by another of the same name.
type watch struct {
	dir     string
	watcher *fsnotify.Watcher // nil when the system has none to give
	err     error
	on      os.FileInfo // the directory that is watched; nil when none is
	linked  bool        // the directory is a link, and its parent is watched for the change of where it leads
}

func newWatch(dir string) *watch {
	w := &watch{dir: dir}
	w.watcher, w.err = fsnotify.NewWatcher()
	return w
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // nothing is lost with it
	}
}

// events blocks for ever without a watcher, as a nil channel does.
func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

// about returns the file that an event is about, "" when that is the directory itself; false when it is neither.
func (w *watch) about(event fsnotify.Event) (file string, ours bool) {
	switch {
	case filepath.Clean(event.Name) == w.dir:
		return "", true
	case filepath.Dir(event.Name) == w.dir:
		return filepath.Base(event.Name), true
	}
	return "", false
}

// lost has the next ensure watch anew: the inode of a removed directory may return with its successor.
func (w *watch) lost() {
	if w.watcher != nil && w.on != nil {
		_ = w.watcher.Remove(w.dir) // the kernel may have removed it already
	}
	w.on = nil
}

// ensure watches the directory that now has the name and reports whether there is one.
func (w *watch) ensure() bool {
	w.followLink()
	info, err := os.Stat(w.dir)
	if err != nil || w.watcher == nil {
		w.lost()
		return false
	}
	if w.on != nil && os.SameFile(w.on, info) {
		return true
	}
	w.lost()
	if w.err = w.watcher.Add(w.dir); w.err != nil {
		return false
	}
	w.on = info
	return true
}

// followLink watches the parent of a directory that is a link: pointing it elsewhere is no event in either directory.
func (w *watch) followLink() {
	if w.watcher == nil {
		return
	}
	info, err := os.Lstat(w.dir)
	isLink := err == nil && info.Mode()&os.ModeSymlink != 0
	switch parent := filepath.Dir(w.dir); {
	case isLink && !w.linked:
		w.linked = w.watcher.Add(parent) == nil // without it, the fallback finds the change
	case !isLink && w.linked:
		_ = w.watcher.Remove(parent) // the kernel may have removed it already
		w.linked = false
	}
}
