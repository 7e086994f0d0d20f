// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// spread is the middle of many values and the quartiles around it: what a busy machine adds to a few of them does not show.
type spread struct{ median, low, high float64 }

func quartiles(values []float64) spread {
	return spread{percentile(values, 0.5), percentile(values, 0.25), percentile(values, 0.75)}
}

// percentile interpolates between the two values nearest to it.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := p * float64(len(sorted)-1)
	below := int(at)
	if p >= 0.99 { // of few values, the 99th percentile is the worst
		return sorted[int(math.Ceil(at))]
	}
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}

func (s spread) String() string {
	return fmt.Sprintf("%s (%s–%s)", short(s.median), short(s.low), short(s.high))
}

// short writes three digits, and all that are before the point.
func short(v float64) string {
	digits := 2
	for limit := 1.0; digits > 0 && math.Abs(v) >= limit*10; limit *= 10 {
		digits--
	}
	if math.Abs(v) < 1 {
		digits = 3
	}
	return fmt.Sprintf("%.*f", digits, v)
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// ratios divides what was measured in the same round, so that what held for both at that time cancels out.
func ratios(a, b []float64) spread {
	each := make([]float64, len(a))
	for i := range a {
		each[i] = a[i] / b[i]
	}
	return quartiles(each)
}
