// SPDX-License-Identifier: Apache-2.0

package container

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv/container/oci"
)

func pointer[T any](v T) *T { return &v }

// understood is a Pod with all that Configure knows.
func understood() corev1.PodSpec {
	return corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{
		Args: []string{"agent", "--node-name=$(NODE)"},
		Env: []corev1.EnvVar{
			{Name: "NODE", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			{Name: "A", Value: "b"},
		},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: pointer[int64](0), RunAsGroup: pointer[int64](0),
			AllowPrivilegeEscalation: pointer(false), ReadOnlyRootFilesystem: pointer(true),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}}}
}

func TestConfigure(t *testing.T) {
	image := &Image{Root: "/image"}
	image.Config.Entrypoint, image.Config.Cmd, image.Config.Env = []string{"/natplane"}, []string{"help"}, []string{"PATH=/"}
	config, err := Configure(image, understood(), "node-a", Bind{From: "/tmp", To: "/manifests"})
	require.NoError(t, err)
	require.Equal(t, []string{"/natplane", "agent", "--node-name=node-a"}, config.Process.Args)
	require.Equal(t, []string{"PATH=/", "NODE=node-a", "A=b"}, config.Process.Env)
	require.Equal(t, []string{"CAP_NET_ADMIN"}, config.Process.Capabilities.Bounding)
	require.True(t, config.Process.NoNewPrivileges)
	require.Equal(t, oci.Root{Path: "/image", Readonly: true}, config.Root)
	require.Contains(t, config.Mounts, oci.Mount{Destination: "/manifests", Type: "bind", Source: "/tmp", Options: []string{"bind", "ro"}})

	for name, change := range map[string]func(*corev1.PodSpec, *corev1.SecurityContext){
		"a network of its own":  func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostNetwork = false },
		"processes of the node": func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.HostPID = true },
		"context of the Pod":    func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.SecurityContext = &corev1.PodSecurityContext{} },
		"volume":                func(p *corev1.PodSpec, _ *corev1.SecurityContext) { p.Volumes = []corev1.Volume{{}} },
		"privileged":            func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.Privileged = pointer(true) },
		"another user":          func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.RunAsUser = pointer[int64](65532) },
		"nothing dropped":       func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.Capabilities.Drop = nil },
		"no profile":            func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.SeccompProfile = nil },
		"proc mount":            func(_ *corev1.PodSpec, s *corev1.SecurityContext) { s.ProcMount = pointer(corev1.UnmaskedProcMount) },
	} {
		p := understood()
		change(&p, p.Containers[0].SecurityContext)
		_, err := Configure(image, p, "node-a")
		require.Error(t, err, name)
	}
}
