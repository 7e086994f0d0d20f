// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"github.com/natplane/natplane/nat"
)

// Source is where objects come from: a directory of manifests or an API server. It may drop and merge events as it likes, because what
// it hands out are whole objects.
type Source interface {
	// Run feeds the source until ctx ends; it outlives any trouble of what it watches.
	Run(ctx context.Context)
	// Changed carries a signal when Take or Problems have something new.
	Changed() <-chan struct{}
	// Take returns the objects that changed since the last Take as they are now, nil for those that are gone, and whether every
	// kind of object has been delivered at least once; until then nothing may be concluded from what is missing (R17).
	Take() (batch nat.Objects, complete bool)
	// Problems says in full sentences what is wrong with the input or the connection to it, sorted.
	Problems() []string
}

// connected is what a Source has that may lose what it follows. What it delivered stays in force, but the agent is not ready.
type connected interface {
	Connected() (ok bool, why string)
}

// Reporter tells others what became of their objects.
type Reporter interface {
	// Run writes what was reported until ctx ends.
	Run(ctx context.Context)
	// Report takes the verdicts that changed, once the kernel holds what they say, and the Services that are no longer ours. It
	// must not block: the loop calls it.
	Report(changed []nat.Verdict, gone []nat.Key)
}
