// SPDX-License-Identifier: Apache-2.0

// Command bench measures natplane against its goals and prints Markdown tables: what one change costs, how long a start takes, what
// the table costs packets, what the flow audit costs, and how long a change takes to reach a packet. It makes network namespaces of its
// own and leaves nothing behind. With -write it puts the tables into a document, between the markers of each section.
//
// It judges nothing: on a busy machine its numbers are about that machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"
)

// section is a part of the document with its measurement.
type section struct {
	name, title string
	run         func(context.Context, settings) ([]*table, error)
}

func sections() []section {
	return append([]section{
		{"machine", "Machine", describeMachine},
		{"change", "One change", measureChange},
		{"start", "Start", measureStart},
		{"traffic", "Established traffic", measureTraffic},
		{"audit", "Flow audit", measureAudit},
		{"manifest", "From a file to a packet", measureManifest},
		{"shard", "Egress shard", measureShard},
	}, clusterSections()...)
}

// settings say how thoroughly to measure.
type settings struct {
	log *slog.Logger
	// changes are timed for each number of Services, starts likewise.
	changes, starts int
	// rounds of slices are run for each kind of traffic.
	rounds int
	slice  time.Duration
	audits int
	// latency is how long changes are timed beside audits.
	latency time.Duration
	// files are changed one after the other.
	files int
	// addresses are changed in the API server with each number of Services up to limit, if there is one.
	addresses, limit int
}

func thorough() settings {
	return settings{changes: 500, starts: 3, rounds: 15, slice: 400 * time.Millisecond, audits: 5, files: 50, latency: 3 * time.Second, addresses: 200}
}

func quick() settings {
	return settings{changes: 50, starts: 1, rounds: 3, slice: 200 * time.Millisecond, audits: 1, files: 10, latency: 500 * time.Millisecond, addresses: 20, limit: 1000}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	write := flag.String("write", "", "also put the tables into this document, between its markers")
	only := flag.String("only", "", "comma-separated sections to run (default all)")
	profile := flag.String("cpuprofile", "", "write a profile for `go tool pprof`")
	fast := flag.Bool("quick", false, "few repetitions: for working on the program, not for numbers")
	flag.Parse()
	if os.Geteuid() != 0 {
		return errors.New("network namespaces need root")
	}
	s := thorough()
	if *fast {
		s = quick()
	}
	s.log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	chosen, err := choose(*only)
	if err != nil {
		return err
	}
	stop, err := profileTo(*profile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	return s.runAll(ctx, chosen, *write)
}

func (s settings) runAll(ctx context.Context, chosen []section, write string) error {
	for _, part := range chosen {
		start := time.Now()
		tables, err := part.run(ctx, s)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		s.log.Info("measured", "section", part.name, "took", time.Since(start).Round(time.Second))
		text := render(tables)
		fmt.Printf("## %s\n\n%s\n", part.title, text)
		if write != "" {
			if err := writeSection(write, part.name, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// profileTo profiles the processor until stop is called; without a path it does nothing.
func profileTo(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

func choose(names string) ([]section, error) {
	all := sections()
	if names == "" {
		return all, nil
	}
	var chosen []section
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(s section) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no section %q", name)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
