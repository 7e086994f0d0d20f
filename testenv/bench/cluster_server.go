// SPDX-License-Identifier: Apache-2.0

//go:build cluster

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// serverReady bounds the start of the API server.
const serverReady = 2 * time.Minute

// apiServer is the binary of testenv/apiserver. It ends with its standard input.
type apiServer struct {
	cmd        *exec.Cmd
	stdin      io.Closer
	kubeconfig string
	config     *rest.Config
	core       typedcorev1.CoreV1Interface
}

// startServer builds the API server, or finds it in the cache, and starts it on a directory.
func startServer(ctx context.Context, dir string) (*apiServer, error) {
	build := exec.CommandContext(ctx, "go", "run", "./build")
	build.Dir, build.Stderr = filepath.Join("testenv", "apiserver"), os.Stderr
	out, err := build.Output()
	if err != nil {
		return nil, fmt.Errorf("building the API server, from the root of the repository: %w", err)
	}
	s := &apiServer{cmd: exec.Command(strings.TrimSpace(string(out)), "--dir", filepath.Join(dir, "server"))}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := s.awaitReady(ctx, stdout); err != nil {
		return nil, errors.Join(err, s.stop())
	}
	if s.config, err = clientcmd.BuildConfigFromFlags("", s.kubeconfig); err == nil {
		s.config.QPS = -1
		s.config.ContentType = "application/vnd.kubernetes.protobuf"
		s.core, err = typedcorev1.NewForConfig(s.config)
	}
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	return s, nil
}

// awaitReady reads the one line that the server prints: ready URL KUBECONFIG.
func (s *apiServer) awaitReady(ctx context.Context, stdout io.Reader) error {
	line := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(stdout).ReadString('\n') // an empty line is told below
		line <- text
	}()
	ctx, cancel := context.WithTimeout(ctx, serverReady)
	defer cancel()
	select {
	case text := <-line:
		fields := strings.Fields(text)
		if len(fields) != 3 || fields[0] != "ready" {
			return fmt.Errorf("the API server says %q", text)
		}
		s.kubeconfig = fields[2]
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the API server does not become ready: %w", ctx.Err())
	}
}

// stop ends the server at once: nobody needs its state any more.
func (s *apiServer) stop() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // "signal: killed"; it closes the pipe, too
	return err
}
