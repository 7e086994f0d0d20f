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

// name returns the file that an event is about; false when it is about the directory itself.
func (w *watch) name(event fsnotify.Event) (string, bool) {
	if filepath.Clean(event.Name) == w.dir {
		return "", false
	}
	return filepath.Base(event.Name), true
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
