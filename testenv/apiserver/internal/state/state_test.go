// SPDX-License-Identifier: Apache-2.0

package state

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOpenAgainKeepsSecrets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new")
	read := func() map[string]string {
		d, err := Open(t.Context(), path)
		require.NoError(t, err)
		defer d.Close()
		client, err := d.WriteKubeconfig("https://127.0.0.1:1", []byte("ca"))
		require.NoError(t, err)
		require.Equal(t, d.token, client.BearerToken)
		content := map[string]string{}
		for _, file := range []string{d.Tokens(), d.ServiceAccountKey(), d.Kubeconfig()} {
			b, err := os.ReadFile(file)
			require.NoError(t, err)
			require.NotEmpty(t, b)
			content[file] = string(b)
		}
		return content
	}
	require.Equal(t, read(), read())
}

func TestOpenRefusesDirectoryInUse(t *testing.T) {
	path := t.TempDir()
	first, err := Open(t.Context(), path)
	require.NoError(t, err)

	ctx, cancel := context.WithTimeout(t.Context(), 3*lockPoll)
	defer cancel()
	_, err = Open(ctx, path)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// A start that finds the directory locked gets it once it is free.
	time.AfterFunc(3*lockPoll, func() { first.Close() })
	second, err := Open(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, second.Close())
}

func TestListenKeepsPort(t *testing.T) {
	d, err := Open(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer d.Close()

	listen := func(port int) *net.TCPAddr {
		l, err := d.Listen(port)
		require.NoError(t, err)
		defer l.Close()
		return l.Addr().(*net.TCPAddr)
	}
	first := listen(0)
	require.True(t, first.IP.IsLoopback())
	require.Less(t, first.Port, firstEphemeral())
	require.Equal(t, first.Port, listen(0).Port)

	other, err := listenFree(firstEphemeral())
	require.NoError(t, err)
	require.NoError(t, other.Close())
	wanted := other.Addr().(*net.TCPAddr).Port
	require.Equal(t, wanted, listen(wanted).Port)
	require.Equal(t, wanted, listen(0).Port, "a given port is remembered")
}

func TestListenRefusesBusyPort(t *testing.T) {
	d, err := Open(t.Context(), t.TempDir())
	require.NoError(t, err)
	defer d.Close()
	l, err := d.Listen(0)
	require.NoError(t, err)
	defer l.Close()

	_, err = d.Listen(0)
	require.ErrorContains(t, err, "serving port")
}
