// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// keyLength is the number of hexadecimal digits of a cache key.
const keyLength = 16

// cacheKey names the binary that the module's files and settings give.
func cacheKey(module fs.FS, settings ...string) (string, error) {
	files, err := sources(module)
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, s := range settings {
		fmt.Fprintf(sum, "%q\n", s)
	}
	for _, name := range files {
		content, err := fs.ReadFile(module, name)
		if err != nil {
			return "", fmt.Errorf("cache key: %w", err)
		}
		fmt.Fprintf(sum, "%q %d\n", name, len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:keyLength], nil
}

// sources lists, sorted, the files that the binary is made of: the module
// files and all Go files but tests and this command.
func sources(module fs.FS) ([]string, error) {
	files := []string{"go.mod", "go.sum"}
	err := fs.WalkDir(module, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (name == "build" || name == "check"):
			return fs.SkipDir
		case path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go"):
			files = append(files, name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cache key: %w", err)
	}
	slices.Sort(files)
	return files, nil
}
