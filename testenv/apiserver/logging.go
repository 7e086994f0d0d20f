// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"io"

	"k8s.io/klog/v2"
)

// logTo sends what Kubernetes says to w. Without these settings klog repeats
// errors on stderr, and in w once for every lower severity.
func logTo(w io.Writer) error {
	fs := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(fs)
	for name, value := range map[string]string{
		"logtostderr":     "false",
		"one_output":      "true",
		"stderrthreshold": "FATAL",
	} {
		if err := fs.Set(name, value); err != nil {
			return fmt.Errorf("klog flag %s: %w", name, err)
		}
	}
	klog.SetOutput(w)
	return nil
}
