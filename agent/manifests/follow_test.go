// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A change that leaves no trace in what stat tells, as within one tick of a coarse clock, is found because there was an event.
func TestEventsCountMoreThanSignatures(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	require.NoError(t, os.WriteFile(path, []byte(manyServices(1)), 0o600))
	f := newFollower(dir)
	require.True(t, f.pass().changed)
	require.False(t, f.pass().changed)

	require.NoError(t, os.WriteFile(path, []byte(manyServices(2)), 0o600))
	info, err := os.Stat(path)
	require.NoError(t, err)
	f.signs["a.yaml"] = sign(info)
	require.False(t, f.pass().changed)
	f.dirty["a.yaml"] = true
	require.True(t, f.pass().changed)
	require.Len(t, f.files["a.yaml"].objects, 2)

	require.False(t, f.pass().changed)
	f.allDirty = true
	require.True(t, f.pass().changed)
}
