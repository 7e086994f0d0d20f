// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"flag"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/stretchr/testify/require"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of one more run of the random sequences; 0 draws one")
	stepsFlag = flag.Int("steps", 120, "batches per random sequence")
)

// seeds are fixed ones, and one that is new each time and printed.
func seeds(t *testing.T, n int) []uint64 {
	fresh := *seedFlag
	if fresh == 0 {
		fresh = rand.Uint64()
	}
	t.Logf("repeat with -seed=%d", fresh)
	list := []uint64{fresh}
	for i := range n {
		list = append(list, uint64(i))
	}
	return list
}

// TestEngineEqualsBuild is the promise of the Engine: whatever the way, the result is that of the objects that are there.
func TestEngineEqualsBuild(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, false)
		e := NewEngine(w.config(), nil)
		state, facts := State{}, Facts{}
		for step := range *stepsFlag {
			batch := w.batch()
			facts = w.facts(facts)
			before := e.Verdicts()
			out := e.Apply(batch, facts)
			got := e.State()
			checkInvariants(t, got)
			want, verdicts := Build(w.config(), w.all, facts)
			requireEqual(t, seed, step, want, got)
			requireEqual(t, seed, step, verdicts, e.Verdicts())
			require.True(t, want.Equal(got))

			requireEqual(t, seed, step, got, replay(t, state, out.Delta))
			requireEqual(t, seed, step, ofServices(e.Verdicts()), replayVerdicts(ofServices(before), out))
			requireNoEmptyChange(t, out.Delta)
			requireSilent(t, e.Apply(NewObjects(), facts))
			requireSilent(t, e.Apply(batch, facts))
			requireSilent(t, e.Apply(w.all, facts))
			state = got
		}
	}
}

// TestAmbiguousEngine lets backends be ambiguous, so that history counts: what is programmed stays while it is among the best.
func TestAmbiguousEngine(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, true)
		e, twin := NewEngine(w.config(), nil), NewEngine(w.config(), nil)
		state, facts := State{}, Facts{}
		for step := range *stepsFlag {
			batch := w.batch()
			facts = w.facts(facts)
			before := chosenBackends(e)
			out := e.Apply(batch, facts)
			twin.Apply(batch, facts)
			got := e.State()
			checkInvariants(t, got)
			requireEqual(t, seed, step, twin.State(), got)
			requireEqual(t, seed, step, twin.Verdicts(), e.Verdicts())
			requireEqual(t, seed, step, got, replay(t, state, out.Delta))
			checkAmbiguity(t, e, before)
			requireSilent(t, e.Apply(w.all, facts))
			state = got
		}
	}
}

// TestOrderOfObjectsDoesNotMatter gives the same objects one by one in random orders.
func TestOrderOfObjectsDoesNotMatter(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, false)
		for range 60 {
			w.batch()
		}
		want, verdicts := Build(w.config(), w.all, Facts{})
		for round := range 5 {
			e := NewEngine(w.config(), nil)
			for _, one := range w.shuffled() {
				e.Apply(one, Facts{})
			}
			requireEqual(t, seed, round, want, e.State())
			requireEqual(t, seed, round, verdicts, e.Verdicts())
		}
	}
}

// TestNothingIsLeftOfWhatWent lets all objects go one by one: a record that stayed would be memory that an agent loses for ever.
func TestNothingIsLeftOfWhatWent(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, true)
		e := NewEngine(w.config(), nil)
		for range *stepsFlag {
			e.Apply(w.batch(), Facts{})
		}
		for _, one := range w.shuffled() {
			letGo(one.Services)
			letGo(one.Slices)
			letGo(one.Pods)
			letGo(one.Shards)
			e.Apply(one, Facts{})
		}
		require.Empty(t, e.services)
		require.Empty(t, e.slices)
		require.Empty(t, e.pods)
		require.Empty(t, e.claims)
		require.Empty(t, e.shardClaims)
		require.Empty(t, e.workloads)
	}
}

// TestHintsRepeatTheState restarts an engine with what the kernel holds: the same State comes out, so nothing is written.
func TestHintsRepeatTheState(t *testing.T) {
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, true)
		w.shared = false // an address of several Services does not tell whose backend the kernel holds
		e := NewEngine(w.config(), nil)
		for step := range *stepsFlag {
			e.Apply(w.batch(), Facts{})
			again := NewEngine(w.config(), programmed(e.State()))
			again.Apply(w.all, Facts{})
			requireEqual(t, seed, step, e.State(), again.State())
		}
	}
}

// TestWorldIsVaried: random objects that never met a rule would prove nothing.
func TestWorldIsVaried(t *testing.T) {
	reasons := map[Reason]int{}
	forwards := map[string]int{}
	for _, seed := range seeds(t, 20) {
		w := newWorld(seed, true)
		e := NewEngine(w.config(), nil)
		for range *stepsFlag {
			e.Apply(w.batch(), Facts{})
			for _, v := range e.Verdicts() {
				reasons[v.Reason]++
			}
			for _, a := range e.State().Addresses {
				for what, is := range map[string]bool{
					"whole": a.Whole.Active(), "echo": a.Echo.Active(), "ports": len(a.Ports) > 0, "hosted": a.Hosted, "elsewhere": a.Elsewhere,
					"shared": len(a.Attached) > 1, "restricted": a.Whole.Sources.Restricted, "v6": a.Public.Is6() && a.Whole.Active(),
				} {
					if is {
						forwards[what]++
					}
				}
			}
		}
	}
	for _, r := range []Reason{ReasonAddressesProgrammed, ReasonShardConflict, ReasonAddressUnassigned, ReasonProgrammed, ReasonNoAddress, ReasonInvalidAddress, ReasonNotPermitted, ReasonAddressConflict, ReasonPortConflict,
		ReasonNoPorts, ReasonMultipleBackends, ReasonBackendUnverified, ReasonNoBackend, ReasonNoBackendFamily, ReasonElsewhere} {
		require.Positive(t, reasons[r], "%s in %v", r, reasons)
	}
	require.Len(t, forwards, 8)
	for what, n := range forwards {
		require.Positive(t, n, "%s in %v", what, forwards)
	}
}

// letGo makes the objects of a batch ones that are gone.
func letGo[V any](batch map[Key]*V) {
	for key := range batch {
		batch[key] = nil
	}
}

func requireEqual[T any](t *testing.T, seed uint64, step int, want, got T) {
	t.Helper()
	diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty())
	if diff != "" {
		require.FailNow(t, "differ", "seed %d, step %d (-want +got):\n%s", seed, step, diff)
	}
}

// replay does to a State what the kernel is told to do.
func replay(t *testing.T, old State, d Delta) State {
	t.Helper()
	host := old.Host
	if d.Host != nil {
		require.True(t, d.Host.Old == nil || d.Host.Old.Equal(old.Host))
		host = *d.Host.New
	}
	return State{
		Addresses: replayList(t, old.Addresses, d.Addresses, func(a Address) netip.Addr { return a.Public }, Address.Equal),
		Backends:  replayList(t, old.Backends, d.Backends, func(b Backend) netip.Addr { return b.Addr }, func(a, b Backend) bool { return a == b }),
		Host:      host,
	}
}

func replayList[T any](t *testing.T, old []T, changes []Change[T], key func(T) netip.Addr, equal func(a, b T) bool) []T {
	t.Helper()
	records := map[netip.Addr]T{}
	for _, r := range old {
		records[key(r)] = r
	}
	last := netip.Addr{}
	for _, c := range changes {
		k := key(*c.either())
		require.True(t, last.Less(k), "changes are sorted, one per record")
		last = k
		was, had := records[k]
		require.Equal(t, had, c.Old != nil, "old of %s", k)
		if had {
			require.True(t, equal(was, *c.Old), "old of %s", k)
			delete(records, k)
		}
		if c.New != nil {
			require.Equal(t, k, key(*c.New))
			records[k] = *c.New
		}
	}
	return slices.SortedFunc(maps.Values(records), func(a, b T) int { return key(a).Compare(key(b)) })
}

// ofServices leaves out shards: nobody is told of one that is gone.
func ofServices(list []Verdict) []Verdict {
	return slices.DeleteFunc(slices.Clone(list), func(v Verdict) bool { return v.Kind != KindService })
}

func replayVerdicts(before []Verdict, out Outcome) []Verdict {
	all := map[Key]Verdict{}
	for _, v := range before {
		all[v.Key()] = v
	}
	for _, v := range ofServices(out.Verdicts) {
		all[v.Key()] = v
	}
	for _, k := range out.Gone {
		delete(all, k)
	}
	return slices.SortedFunc(maps.Values(all), CompareVerdicts)
}

func requireNoEmptyChange(t *testing.T, d Delta) {
	t.Helper()
	for _, c := range d.Addresses {
		require.False(t, c.Old == nil && c.New == nil)
		require.False(t, c.Old != nil && c.New != nil && c.Old.Equal(*c.New), "a change that changes nothing")
	}
	for _, c := range d.Backends {
		require.False(t, c.Old == nil && c.New == nil)
		require.False(t, c.Old != nil && c.New != nil && *c.Old == *c.New, "a change that changes nothing")
	}
}

// serviceFamily names the choice of a Service in one family.
type serviceFamily struct {
	service Key
	family  family
}

// chosen is the backend of a Service, and whether the Service holds an address that translates to it.
type chosen struct {
	addr netip.Addr
	held bool
}

func chosenBackends(e *Engine) map[serviceFamily]chosen {
	all := map[serviceFamily]chosen{}
	for key, n := range e.services {
		r := n.resolution
		if r == nil {
			continue
		}
		for _, f := range families {
			all[serviceFamily{key, f}] = chosen{addr: r.choices[f].addr}
		}
		for _, held := range r.permitted {
			f := familyOf(held.addr)
			if c := r.choices[f]; held.grantTo(n).any() && c.found() {
				all[serviceFamily{key, f}] = chosen{c.addr, true}
			}
		}
	}
	return all
}

func checkAmbiguity(t *testing.T, e *Engine, before map[serviceFamily]chosen) {
	t.Helper()
	for key, n := range e.services {
		r := n.resolution
		if r == nil {
			continue
		}
		for _, f := range families {
			c, was := r.choices[f], before[serviceFamily{key, f}]
			switch {
			case len(c.rivals) == 0:
			case was.held && slices.Contains(c.rivals, was.addr):
				require.Equal(t, was.addr, c.addr, "%s: what is programmed stays", key)
			case c.found():
				require.Equal(t, was.addr, c.addr, "%s: nothing new while ambiguous", key)
			}
		}
	}
}

// programmed is what a restarted agent reads back from the kernel.
func programmed(s State) map[netip.Addr][]netip.Addr {
	all := map[netip.Addr][]netip.Addr{}
	for _, a := range s.Addresses {
		list := slices.Clone(a.Attached)
		if a.Whole.Active() {
			list = append(list, a.Whole.Backend)
		}
		if a.Echo.Active() {
			list = append(list, a.Echo.Backend)
		}
		for _, p := range a.Ports {
			list = append(list, p.Target.Addr())
		}
		all[a.Public] = sortAddrs(list)
	}
	return all
}
