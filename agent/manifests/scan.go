// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// maxFile bounds what a stray file can cost, in bytes; 100,000 Services are about 100 MB of YAML.
const maxFile = 512 << 20

// signature changes whenever the content of a file may have.
type signature struct {
	device, inode    uint64
	size             int64
	modified, status time.Time
}

func sign(info fs.FileInfo) signature {
	s := signature{size: info.Size(), modified: info.ModTime()}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode = uint64(st.Dev), st.Ino //nolint:unconvert // Dev is 32 bits wide on some architectures
		s.status = time.Unix(st.Ctim.Unix())
	}
	return s
}

// sameFile reports whether both are of one inode: what was written in place, not replaced.
func (s signature) sameFile(o signature) bool { return s.device == o.device && s.inode == o.inode }

// list returns the names of the manifests of a directory, sorted. Hidden files are those of editors and the links of ConfigMap volumes.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		if isManifest(name) && !entry.IsDir() {
			names = append(names, name)
		}
	}
	return names, nil
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

var (
	errNotRegular = errors.New("not a regular file")
	// errWritten says that a file changed while it was read.
	errWritten = errors.New("written while it was read")
)

// readFile reads a file whose content holds still for so long.
func readFile(path string) ([]byte, signature, error) {
	// Without O_NONBLOCK the open of a named pipe waits for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, signature{}, err
	}
	defer f.Close() //nolint:errcheck // only read from
	before, err := f.Stat()
	switch {
	case err != nil:
		return nil, signature{}, err
	case !before.Mode().IsRegular():
		return nil, signature{}, errNotRegular
	case before.Size() > maxFile:
		return nil, signature{}, fmt.Errorf("larger than %d MiB", maxFile>>20)
	}
	data := make([]byte, before.Size())
	if _, err := io.ReadFull(f, data); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, signature{}, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, signature{}, err
	}
	if sign(after) != sign(before) {
		return nil, signature{}, errWritten
	}
	return data, sign(before), nil
}
