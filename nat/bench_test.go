// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// fleet gives n machines with one public address each, whole and listed in turns; perNode of them run on this node.
func fleet(n, perNode int) Objects {
	all := NewObjects()
	for i := range 100 {
		node(fmt.Sprintf("node-%03d", i), fmt.Sprintf("198.51.100.%d", i+1)).pods(fmt.Sprintf("10.%d.0.0/16", 100+i)).addTo(all)
	}
	for i := range n {
		name := fmt.Sprintf("tenant-%d/vm-%d", i%100, i)
		s := svc(name).ip(nth("203.0.0.0", i)).age(i % 1000)
		if i%2 == 0 {
			s.whole().ports("65535")
		} else {
			s.ports("http:80", "https:443")
		}
		s.addTo(all)
		m := vm(name, nth("10.0.0.0", i)).serves("http:8080", "https:8443")
		if i >= perNode {
			m = m.on("node-b")
		}
		m.addTo(all)
	}
	return all
}

func nth(base string, i int) string {
	b := netip.MustParseAddr(base).As4()
	b[1] += byte(i >> 16)
	b[2], b[3] = byte(i>>8), byte(i)
	return netip.AddrFrom4(b).String()
}

// BenchmarkApplyOneChange moves the endpoint of one Service to another address and back: the cost must not grow with the Services.
func BenchmarkApplyOneChange(b *testing.B) {
	for _, n := range []int{1, 1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			e := NewEngine(testConfig("node-a"), nil)
			e.Apply(fleet(n, n), Facts{})
			e.Apply(objects(pod("tenant-0/next", "10.99.0.1")), Facts{})
			name := "tenant-0/vm-0"
			machine := objects(vm(name, nth("10.0.0.0", 0)))
			var batches [2]Objects
			for key := range machine.Slices {
				batches[0], batches[1] = NewObjects(), NewObjects()
				batches[0].Slices[key] = slice(name, key.Name, "10.99.0.1@node-a").EndpointSlice
				batches[1].Slices[key] = slice(name, key.Name, nth("10.0.0.0", 0)+"@node-a").EndpointSlice
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				out := e.Apply(batches[i%2], Facts{})
				if len(out.Delta.Addresses) != 1 || len(out.Delta.Backends) != 2 {
					b.Fatalf("unexpected delta %+v", out.Delta)
				}
			}
		})
	}
}

// BenchmarkBuild is the start of an agent: a node with a tenth of the machines, and one that has them all.
func BenchmarkBuild(b *testing.B) {
	for _, n := range []int{10_000, 100_000} {
		for _, share := range []int{10, 1} {
			b.Run(fmt.Sprintf("%d/local=%d", n, n/share), func(b *testing.B) {
				all := fleet(n, n/share)
				b.ReportAllocs()
				for b.Loop() {
					s, _ := Build(testConfig("node-a"), all, Facts{})
					if len(s.Addresses) != n || len(s.Backends) != n/share {
						b.Fatalf("%d addresses, %d backends", len(s.Addresses), len(s.Backends))
					}
				}
			})
		}
	}
}

// TestOneChangeCostsTheSameAtEverySize counts allocations, which do not depend on how busy the machine is.
func TestOneChangeCostsTheSameAtEverySize(t *testing.T) {
	cost := func(n int) float64 {
		e := NewEngine(testConfig("node-a"), nil)
		e.Apply(fleet(n, n), Facts{})
		web := [2]Objects{objects(svc("tenant-0/vm-0").whole().ip("203.0.113.10")), objects(svc("tenant-0/vm-0").whole().ip("203.0.113.11"))}
		i := 0
		return testing.AllocsPerRun(100, func() {
			e.Apply(web[i%2], Facts{})
			i++
		})
	}
	small, large := cost(1), cost(5000)
	require.Less(t, large, small*1.5+10)
}
