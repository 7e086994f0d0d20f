// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// withQuietLogger has client-go log to ours at debug level: what matters of it is said once, by the gate and the followers, and not
// by every kind on every attempt.
func withQuietLogger(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, quietLogger(log))
}

func quietLogger(log *slog.Logger) klog.Logger {
	return logr.FromSlogHandler(quiet{log.Handler()})
}

// quiet turns every record into a debug record.
type quiet struct{ slog.Handler }

func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
