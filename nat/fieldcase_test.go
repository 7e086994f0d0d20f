// SPDX-License-Identifier: Apache-2.0

package nat

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// story applies batches to one engine and compares what each comes to.
type story struct {
	*testing.T
	engine *Engine
}

func newStory(t *testing.T) story { return story{t, NewEngine(testConfig("node-a"), nil)} }

func (s story) then(want string, objs ...object) Outcome {
	s.Helper()
	return s.thenBatch(want, objects(objs...))
}

func (s story) thenBatch(want string, batch Objects) Outcome {
	s.Helper()
	out := s.engine.Apply(batch, Facts{})
	checkInvariants(s, s.engine.State())
	requireText(s.T, want, describe(s.engine.State(), s.engine.Verdicts()))
	return out
}

// gone turns objects into their deletion.
func gone(objs ...object) Objects {
	o := objects(objs...)
	for k := range o.Services {
		o.Services[k] = nil
	}
	for k := range o.Slices {
		o.Slices[k] = nil
	}
	for k := range o.Pods {
		o.Pods[k] = nil
	}
	for k := range o.Nodes {
		o.Nodes[k] = nil
	}
	return o
}

func requireSilent(t *testing.T, out Outcome) {
	t.Helper()
	require.True(t, out.Delta.Empty(), "delta %+v", out.Delta)
	require.Empty(t, out.Verdicts)
	require.Empty(t, out.Gone)
}

func TestFieldCase_B01_EveryAddressInAnyOrder(t *testing.T) {
	const both = `
		203.0.113.10 a/vm-a whole>192.0.2.10 @192.0.2.10
		2001:db8:f::10 a/vm-a whole>2001:db8:a::10 @2001:db8:a::10
		192.0.2.10 leaves 203.0.113.10 of a/vm-a
		2001:db8:a::10 leaves 2001:db8:f::10 of a/vm-a
		a/vm-a: Programmed`
	s := newStory(t)
	web := func() svcBuilder { return svc("a/vm-a").whole() }
	s.then(both, web().hostname("x.example").ip("2001:db8:f::10", "203.0.113.10"), vm("a/vm-a", "192.0.2.10", "2001:db8:a::10"))
	requireSilent(t, s.then(both, web().ip("203.0.113.10").hostname("x.example").ip("2001:db8:f::10")))
	requireSilent(t, s.then(both, web().ip("203.0.113.10", "2001:db8:f::10")))
}

func TestFieldCase_B02_SecondFamilyLater(t *testing.T) {
	const v4 = `
		203.0.113.10 a/vm-a whole>192.0.2.10 @192.0.2.10`
	const both = v4 + `
		2001:db8:f::10 a/vm-a whole>2001:db8:a::10 @2001:db8:a::10
		192.0.2.10 leaves 203.0.113.10 of a/vm-a
		2001:db8:a::10 leaves 2001:db8:f::10 of a/vm-a
		a/vm-a: Programmed`
	one, two := svc("a/vm-a").whole().ip("203.0.113.10"), svc("a/vm-a").whole().ip("203.0.113.10", "2001:db8:f::10")
	ends4, ends6 := slice("a/vm-a", "s4", "192.0.2.10@node-a"), slice("a/vm-a", "s6", "2001:db8:a::10@node-a")
	machine := pod("a/p", "192.0.2.10", "2001:db8:a::10")
	const before = v4 + `
		192.0.2.10 leaves 203.0.113.10 of a/vm-a
		a/vm-a: Programmed`
	t.Run("address first", func(t *testing.T) {
		s := newStory(t)
		s.then(before, one, ends4, machine)
		s.then(v4+`
			2001:db8:f::10 a/vm-a guarded
			192.0.2.10 leaves 203.0.113.10 of a/vm-a
			a/vm-a: NoBackendForFamily`, two)
		out := s.then(both, ends6)
		require.Len(t, out.Delta.Addresses, 1, "IPv4 is undisturbed")
		require.Len(t, out.Delta.Backends, 1, "IPv4 is undisturbed")
	})
	t.Run("endpoint first", func(t *testing.T) {
		s := newStory(t)
		s.then(before, one, ends4, machine)
		require.True(t, s.then(before, ends6).Delta.Empty())
		out := s.then(both, two)
		require.Len(t, out.Delta.Addresses, 1, "IPv4 is undisturbed")
		require.Len(t, out.Delta.Backends, 1, "IPv4 is undisturbed")
	})
}

func TestFieldCase_B04_EndpointMovesBetweenSlices(t *testing.T) {
	web, machine := svc("a/web").whole().ip("203.0.113.10"), pod("a/p", "10.0.0.10")
	first, second := slice("a/web", "s1", "10.0.0.10@node-a"), slice("a/web", "s2", "10.0.0.10@node-a")
	t.Run("written before it is shrunk", func(t *testing.T) {
		s := newStory(t)
		s.then(servedWhole, web, machine, first)
		requireSilent(t, s.then(servedWhole, second))
		requireSilent(t, s.thenBatch(servedWhole, gone(first)))
	})
	t.Run("both in one batch", func(t *testing.T) {
		s := newStory(t)
		s.then(servedWhole, web, machine, first)
		batch := gone(first)
		second.addTo(batch)
		requireSilent(t, s.thenBatch(servedWhole, batch))
	})
	t.Run("shrunk first", func(t *testing.T) {
		s := newStory(t)
		s.then(servedWhole, web, machine, first)
		s.then("203.0.113.10 a/web guarded\na/web: NoBackend", slice("a/web", "s1"))
		s.then(servedWhole, second)
	})
	t.Run("slice given to another Service", func(t *testing.T) {
		s := newStory(t)
		s.then(servedWhole, web, machine, first)
		s.then("203.0.113.10 a/web guarded\na/web: NoBackend", slice("a/other", "s1", "10.0.0.10@node-a"))
		s.then(servedWhole, first)
	})
}

// TestFieldCase_B05: an ended Pod vouches for nothing, and takes nothing away from the Pod that has its address now.
func TestFieldCase_B05_CompletedPodKeepsItsAddress(t *testing.T) {
	const refused = "203.0.113.10 a/web guarded\na/web: BackendUnverified"
	web, ends := svc("a/web").whole().ip("203.0.113.10"), slice("a/web", "s", "10.0.0.10@node-a")
	job := func(p corev1.PodPhase) object { return pod("a/job-1", "10.0.0.10").phase(p) }
	fresh := func(p corev1.PodPhase) object { return pod("a/web-1", "10.0.0.10").phase(p) }
	s := newStory(t)
	s.then(refused, web, ends, job(corev1.PodSucceeded))
	s.then(servedWhole, fresh(corev1.PodRunning))
	requireSilent(t, s.then(servedWhole, job(corev1.PodFailed)))
	requireSilent(t, s.thenBatch(servedWhole, gone(job(corev1.PodFailed))))
	requireSilent(t, s.then(servedWhole, job(corev1.PodSucceeded)))
	s.then(refused, fresh(corev1.PodSucceeded))
	s.then(servedWhole, job(corev1.PodRunning))
	s.thenBatch(refused, gone(job(corev1.PodRunning)))
}

func TestFieldCase_B06_PhaseChangeWithoutDeletion(t *testing.T) {
	const refused = "203.0.113.10 a/web guarded\na/web: BackendUnverified"
	web, ends := svc("a/web").whole().ip("203.0.113.10"), slice("a/web", "s", "10.0.0.10@node-a")
	s := newStory(t)
	s.then(servedWhole, web, ends, pod("a/p", "10.0.0.10"))
	ended := pod("a/p", "10.0.0.10").phase(corev1.PodSucceeded)
	out := s.then(refused, ended)
	require.Len(t, out.Delta.Backends, 1)
	require.Nil(t, out.Delta.Backends[0].New)
	requireSilent(t, s.then(refused, web, ends, ended)) // a full resync
}

func TestFieldCase_B08_ServingWhileItShutsDown(t *testing.T) {
	open := `
		203.0.113.10 a/web TCP80>10.0.0.10:80 @10.0.0.10
		10.0.0.10 leaves 203.0.113.10 of a/web
		a/web: Programmed`
	web, machine := svc("a/web").ip("203.0.113.10").ports("80"), pod("a/p", "10.0.0.10")
	ends := func(rank string) object { return slice("a/web", "s", "10.0.0.10@node-a"+rank).serves("80") }
	s := newStory(t)
	s.then(open, web, machine, ends("")) // all conditions nil
	requireSilent(t, s.then(open, ends("!ready")))
	requireSilent(t, s.then(open, ends("!serving")))
	s.then("203.0.113.10 a/web guarded\na/web: NoBackend", slice("a/web", "s"))
}

func TestFieldCase_B09_NewPodAddress(t *testing.T) {
	s := newStory(t)
	s.then(servedWhole, svc("a/web").whole().ip("203.0.113.10"), pod("a/p", "10.0.0.10"), slice("a/web", "s", "10.0.0.10@node-a"))
	s.then(`
		203.0.113.10 a/web whole>10.0.0.15 @10.0.0.15
		10.0.0.15 leaves 203.0.113.10 of a/web
		a/web: Programmed`, pod("a/p", "10.0.0.15"), slice("a/web", "s", "10.0.0.15@node-a"))
}

func TestFieldCase_B10_OneOfTwoThatShareAnAddress(t *testing.T) {
	tcp, udp := svc("b/tcp").ip("203.0.113.20").ports("53").age(1), svc("b/udp").ip("203.0.113.20").ports("53/UDP").age(2)
	ends := func(name string) object { return slice("b/"+name, name, "10.0.0.20@node-a").serves("53", "53/UDP") }
	other := svc("a/vm-a").whole().ip("203.0.113.10")
	const left = `
		203.0.113.20 b/tcp TCP53>10.0.0.20:53 @10.0.0.20
		10.0.0.20 leaves 203.0.113.20 of b/tcp
		b/tcp: Programmed`
	s := newStory(t)
	s.then(`
		203.0.113.10 a/vm-a whole>10.0.0.10 @10.0.0.10
		203.0.113.20 b/udp TCP53>10.0.0.20:53(b/tcp) UDP53>10.0.0.20:53 @10.0.0.20
		10.0.0.10 leaves 203.0.113.10 of a/vm-a
		10.0.0.20 leaves 203.0.113.20 of b/udp
		a/vm-a: Programmed
		b/tcp: Programmed
		b/udp: Programmed`, other, tcp, udp, pod("b/p", "10.0.0.20"), ends("tcp"), ends("udp"), vm("a/vm-a", "10.0.0.10"))
	out := s.thenBatch(`
		203.0.113.10 a/vm-a whole>10.0.0.10 @10.0.0.10
		203.0.113.20 b/tcp TCP53>10.0.0.20:53 @10.0.0.20
		10.0.0.10 leaves 203.0.113.10 of a/vm-a
		10.0.0.20 leaves 203.0.113.20 of b/tcp
		a/vm-a: Programmed
		b/tcp: Programmed`, gone(udp))
	require.Equal(t, addr("203.0.113.20"), out.Delta.Backends[0].New.Primary, "its egress goes on with the same address")
	out = s.thenBatch(left, gone(other))
	require.Len(t, out.Delta.Addresses, 1)
	require.Len(t, out.Delta.Backends, 1)
}

// TestFieldCase_B12: a deletion works from the name alone; what was programmed is what the engine remembers.
func TestFieldCase_B12_DeletionOfWhatWasProgrammed(t *testing.T) {
	web, machine := svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10")
	s := newStory(t)
	s.then(servedWhole, web, machine)
	stale := gone(svc("a/web").whole().ip("203.0.113.99"), machine, svc("a/never").whole(), node("never"), pod("a/never"), slice("a/never", "never"))
	out := s.thenBatch("", stale)
	require.Equal(t, addr("203.0.113.10"), out.Delta.Addresses[0].Old.Public)
	require.Nil(t, out.Delta.Addresses[0].New)
	require.Equal(t, []Key{keyOf("a/web")}, out.Gone)
	requireSilent(t, s.thenBatch("", stale))
}

func TestFieldCase_B14_FailsClosedThroughEveryFlip(t *testing.T) {
	sip := func() svcBuilder { return svc("a/web").ip("203.0.113.10").ports("5060/SCTP") }
	const listed = `
		203.0.113.10 a/web SCTP5060>10.0.0.10:5060 @10.0.0.10
		10.0.0.10 leaves 203.0.113.10 of a/web
		a/web: Programmed`
	s := newStory(t)
	s.then(listed, sip(), vm("a/web", "10.0.0.10").serves("5060/SCTP"))
	s.then("203.0.113.10 a/web guarded\na/web: NoPorts", svc("a/web").ip("203.0.113.10"))
	s.then(servedWhole, sip().whole())
	s.then(listed, sip().annotate(AnnotationWholeIP, "True"))
	requireSilent(t, s.then(listed, sip()))
	s.then(servedWhole, sip().annotate(AnnotationWholeIP, "true"))
}

func TestFieldCase_B15_FilterFollowsTheEndpoint(t *testing.T) {
	s := newStory(t)
	list := svc("a/web").ip("203.0.113.10").ports("22")
	s.then(`
		203.0.113.10 a/web TCP22>10.0.0.10:22 @10.0.0.10
		10.0.0.10 leaves 203.0.113.10 of a/web
		a/web: Programmed`, list, pod("a/p", "10.0.0.10"), slice("a/web", "s", "10.0.0.10@node-a").serves("22"))
	out := s.then(`
		203.0.113.10 a/web TCP22>10.0.0.15:22 @10.0.0.15
		10.0.0.15 leaves 203.0.113.10 of a/web
		a/web: Programmed`, pod("a/p2", "10.0.0.15"), slice("a/web", "s", "10.0.0.15@node-a").serves("22"))
	require.Len(t, out.Delta.Addresses, 1, "ports and backend change in one record")
	require.Len(t, out.Delta.Backends, 2)
}

func TestFieldCase_B16_SelectionByLabelAlone(t *testing.T) {
	web := func() svcBuilder { return svc("a/web").whole().ip("203.0.113.10") }
	proxy := corev1.LoadBalancerIPModeProxy
	s := newStory(t)
	s.then("", web().label(""), vm("a/web", "10.0.0.10"))
	s.then("", web().label("another"))
	s.then(servedWhole, web())
	out := s.then("", web().label(""))
	require.Equal(t, []Key{keyOf("a/web")}, out.Gone)
	s.then("a/web: NoAddress", svc("a/web").whole().ingress(corev1.LoadBalancerIngress{IP: "203.0.113.10", IPMode: &proxy}))
}

func TestFieldCase_B17_CreatedAndDeletedAtOnce(t *testing.T) {
	short := []object{svc("a/short").whole().ip("203.0.113.10").age(9), vm("a/short", "10.0.0.9")}
	s := newStory(t)
	first := s.then("")
	require.Nil(t, first.Delta.Addresses)
	batch := objects(short...)
	batch.Merge(gone(short...))
	requireSilent(t, s.thenBatch("", batch))
	s.then(servedWhole, svc("a/web").whole().ip("203.0.113.10"), vm("a/web", "10.0.0.10"))
}

func TestFieldCase_B19_AddressFirstWorkloadLater(t *testing.T) {
	s := newStory(t)
	s.then("203.0.113.10 a/web guarded\na/web: NoBackend", svc("a/web").whole().ip("203.0.113.10"))
	s.then("203.0.113.10 a/web guarded\na/web: BackendUnverified", slice("a/web", "s", "10.0.0.10@node-a"))
	s.then("203.0.113.10 a/web guarded\na/web: BackendUnverified", pod("a/p")) // no address yet
	s.then(servedWhole, pod("a/p", "10.0.0.10"))
	s.then("203.0.113.10 a/web guarded\na/web: BackendUnverified", pod("a/p", "10.0.0.11"))
	s.then(servedWhole, pod("a/p", "10.0.0.10"))
}

func TestFieldCase_B37_SamePortInsideAndOutside(t *testing.T) {
	for _, inside := range []string{"80", "8080"} {
		s := newStory(t)
		web, machine := svc("a/web").ip("203.0.113.10").ports("p:80"), vm("a/web", "10.0.0.10").serves("p:"+inside)
		s.then(`
			203.0.113.10 a/web TCP80>10.0.0.10:`+inside+` @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: Programmed`, web, machine)
		s.then(`
			203.0.113.10 a/web TCP80>10.0.0.10:`+inside+` @10.0.0.10
			10.0.0.10 leaves nowhere
			a/web: Programmed`, svc("a/web").ip("203.0.113.10").ports("p:80").primary("false"))
		s.then(`
			203.0.113.10 a/web guarded @10.0.0.10
			10.0.0.10 leaves 203.0.113.10 of a/web
			a/web: NoBackend`, web, machine.ranked("notready"))
	}
}

func TestFieldCase_B93_EndpointsThatAreNoWorkloads(t *testing.T) {
	hand := slice("a/web", "hand", "127.0.0.1@node-a", "169.254.169.254@node-a", "198.51.100.2@node-a", "198.51.100.7@node-a", "192.0.2.20@node-a")
	six := slice("a/web", "six", "fe80::1@node-a").family(discoveryv1.AddressTypeIPv6)
	objs := []object{svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10"), hand, six, pod("b/vm-b", "192.0.2.20"), node("node-b", "198.51.100.2")}
	s, verdicts := plan(t, "node-a", objs...)
	requireText(t, `
		203.0.113.10 a/web guarded
		2001:db8:f::10 a/web guarded
		a/web: BackendUnverified`, describe(s, verdicts))
	for _, bad := range []string{"127.0.0.1", "169.254.169.254", "198.51.100.2", "198.51.100.7", "192.0.2.20", "fe80::1"} {
		require.Contains(t, verdictOf(t, verdicts, "a/web").Message, bad, "refused one by one and reported")
	}
}

func TestFieldCase_B96_SourceRangesInBothMethods(t *testing.T) {
	ranges := []string{"198.51.100.8/32", "2001:db8:e::8/128"}
	s := newStory(t)
	s.then(`
		203.0.113.10 a/web whole>10.0.0.10{198.51.100.8} @10.0.0.10
		203.0.113.11 a/db echo>10.0.0.10{198.51.100.8} TCP22>10.0.0.10:22{198.51.100.8} @10.0.0.10
		2001:db8:f::10 a/web whole>fd00::10{2001:db8:e::8} @fd00::10
		10.0.0.10 leaves 203.0.113.11 of a/db
		fd00::10 leaves 2001:db8:f::10 of a/web
		a/db: Programmed
		a/web: Programmed`,
		svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10").sources(ranges...), vm("a/web", "10.0.0.10", "fd00::10"),
		svc("a/db").ip("203.0.113.11").ports("22").icmp().sources(ranges...), slice("a/db", "db", "10.0.0.10@node-a").serves("22"))
	out := s.engine.Apply(objects(svc("a/web").whole().ip("203.0.113.10", "2001:db8:f::10").sources("198.51.100.9/32")), Facts{})
	require.Len(t, out.Delta.Addresses, 2, "narrowing changes the records, so that the audit cuts what is no longer admitted")
	require.False(t, out.Delta.Addresses[0].New.Whole.Sources.Admits(addr("198.51.100.8")))
	require.False(t, out.Delta.Addresses[1].New.Whole.Sources.Admits(addr("2001:db8:e::8")))
}
