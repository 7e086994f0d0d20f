// SPDX-License-Identifier: Apache-2.0

package container

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/natplane/natplane/testenv/container/oci"
)

// Bind is a directory of this machine that the container sees read-only.
type Bind struct{ From, To string }

// Configure is the container of a Pod on a node, as a kubelet and a container runtime would set it up.
func Configure(image *Image, pod corev1.PodSpec, node string, binds ...Bind) (oci.Config, error) {
	if len(pod.Containers) != 1 {
		return oci.Config{}, fmt.Errorf("%d containers, want one", len(pod.Containers))
	}
	c := pod.Containers[0]
	env, err := environment(image, c, node)
	if err != nil {
		return oci.Config{}, err
	}
	config := oci.Config{
		Version: oci.Version,
		Root:    oci.Root{Path: image.Root},
		Process: oci.Process{Env: env, Cwd: "/"},
		Mounts:  append(defaultMounts(), bindMounts(binds)...),
		Linux: oci.Linux{
			Namespaces:    ownNamespaces(),
			MaskedPaths:   []string{"/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/sys/firmware"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	if config.Process.Args, err = image.command(c.Command, expand(c.Args, env)); err != nil {
		return oci.Config{}, err
	}
	return config, errors.Join(checkPod(pod), secure(&config, c.SecurityContext))
}

// checkPod refuses what would change the security context and is not translated here.
func checkPod(pod corev1.PodSpec) error {
	var errs []error
	refuse := func(yes bool, what string) {
		if yes {
			errs = append(errs, errors.New("not understood in the manifest: "+what))
		}
	}
	c := pod.Containers[0]
	refuse(!pod.HostNetwork, "a network of its own")
	refuse(pod.HostPID || pod.HostIPC || pod.ShareProcessNamespace != nil || pod.HostUsers != nil, "other shared namespaces")
	refuse(pod.SecurityContext != nil, "securityContext of the Pod")
	refuse(len(pod.Volumes)+len(c.VolumeMounts)+len(c.VolumeDevices) > 0, "volumes")
	refuse(len(pod.InitContainers)+len(c.EnvFrom) > 0 || c.WorkingDir != "", "initContainers, envFrom, workingDir")
	refuse(pod.RuntimeClassName != nil, "runtimeClassName")
	return errors.Join(errs...)
}

// secure applies the security context.
func secure(config *oci.Config, given *corev1.SecurityContext) error {
	if given == nil {
		return errors.New("the container has no securityContext")
	}
	s := *given
	if s.RunAsUser == nil || *s.RunAsUser != 0 || s.RunAsGroup == nil || *s.RunAsGroup != 0 {
		return errors.New("user and group have to be 0: capabilities of another user would be lost at exec")
	}
	if s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		return errors.New("all capabilities have to be dropped before some are added")
	}
	if s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		return errors.New("the seccomp profile has to be RuntimeDefault")
	}
	names := []string{}
	for _, c := range s.Capabilities.Add {
		names = append(names, "CAP_"+string(c))
	}
	// Runtimes leave the inheritable and ambient sets empty, since 2022.
	config.Process.Capabilities = oci.Capabilities{Bounding: names, Effective: names, Permitted: names, Inheritable: []string{}, Ambient: []string{}}
	config.Process.NoNewPrivileges = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
	config.Root.Readonly = s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
	s.RunAsUser, s.RunAsGroup, s.Capabilities, s.SeccompProfile, s.AllowPrivilegeEscalation, s.ReadOnlyRootFilesystem = nil, nil, nil, nil, nil, nil
	if !reflect.DeepEqual(s, corev1.SecurityContext{}) {
		return fmt.Errorf("not understood in the securityContext: %+v", s)
	}
	return nil
}

// environment is that of the image and then that of the manifest.
func environment(image *Image, c corev1.Container, node string) ([]string, error) {
	env := slices.Clone(image.Config.Env)
	for _, e := range c.Env {
		value := e.Value
		if e.ValueFrom != nil {
			if e.ValueFrom.FieldRef == nil || e.ValueFrom.FieldRef.FieldPath != "spec.nodeName" {
				return nil, fmt.Errorf("not understood in the manifest: value of %s", e.Name)
			}
			value = node
		}
		env = append(env, e.Name+"="+value)
	}
	return env, nil
}

// expand replaces $(NAME) in arguments.
func expand(args, env []string) []string {
	var pairs []string
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		pairs = append(pairs, "$("+name+")", value)
	}
	replacer := strings.NewReplacer(pairs...)
	var expanded []string
	for _, a := range args {
		expanded = append(expanded, replacer.Replace(a))
	}
	return expanded
}

// ownNamespaces are those that a container with the node's network has for itself.
func ownNamespaces() []oci.Namespace {
	return []oci.Namespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}}
}

// defaultMounts are what every container has.
func defaultMounts() []oci.Mount {
	return []oci.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
}

func bindMounts(binds []Bind) []oci.Mount {
	var mounts []oci.Mount
	for _, b := range binds {
		mounts = append(mounts, oci.Mount{Destination: b.To, Type: "bind", Source: b.From, Options: []string{"bind", "ro"}})
	}
	return mounts
}
