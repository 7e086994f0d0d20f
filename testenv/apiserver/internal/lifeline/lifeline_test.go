// SPDX-License-Identifier: Apache-2.0

package lifeline

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const endLimit = 10 * time.Second

func TestWatchEndsWithInput(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })

	ctx, err := Watch(t.Context(), r)
	require.NoError(t, err)
	_, err = w.WriteString("bytes do not end it\n")
	require.NoError(t, err)
	require.NoError(t, ctx.Err())

	require.NoError(t, w.Close())
	requireEnd(t, ctx, ErrInputClosed)
}

func TestWatchParentEndsWithProcess(t *testing.T) {
	child := exec.Command("cat") // lives until its stdin is closed
	stdin, err := child.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())

	ctx, cancel := context.WithCancelCause(t.Context())
	require.NoError(t, watchParent(child.Process.Pid, cancel))
	require.NoError(t, ctx.Err())

	require.NoError(t, stdin.Close())
	requireEnd(t, ctx, ErrParentGone)
	require.NoError(t, child.Wait())

	ctx, cancel = context.WithCancelCause(t.Context())
	require.NoError(t, watchParent(child.Process.Pid, cancel))
	requireEnd(t, ctx, ErrParentGone)
}

func requireEnd(t *testing.T, ctx context.Context, cause error) {
	t.Helper()
	select {
	case <-ctx.Done():
		require.ErrorIs(t, context.Cause(ctx), cause)
	case <-time.After(endLimit):
		require.FailNow(t, "context did not end")
	}
}
