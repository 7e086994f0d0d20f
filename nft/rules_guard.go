// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The rules are given as nft prints them. Rules of both families are shown for IPv4; testdata/sample.nft is what nft
// prints of the whole table.

// The ICMPv6 types of neighbour discovery (RFC 4861). The kernel tracks neither them nor MLD (RFC 3810), whoever sends them.
func neighbourTypes() []byte { return []byte{133, 134, 135, 136, 137} }

// neighbourHopLimit is what tells neighbour discovery from packets that only have its types: no router can have forwarded it
// (RFC 4861, 6.1 and 7.1). Letting others pass untracked would send them back to the router, or out with a private source.
const neighbourHopLimit = 255

// sourceRangesRules drops what loadBalancerSourceRanges does not admit, before translation, on the true client address.
func sourceRangesRules() []rule {
	var rules []rule
	for _, f := range families() {
		rules = append(rules,
			// ip daddr @restricted4 ip daddr . ip saddr != @allowed4 counter drop
			newRule("loadBalancerSourceRanges of a WholeIP Service",
				f.guard(), f.daddrIn(restricted4), f.sourceNotIn(allowed4), drop()),
			// icmp type echo-request ip daddr @restricted_echo4 ip daddr . ip saddr != @allowed4 counter drop
			newRule("loadBalancerSourceRanges of a PortList Service: echo",
				f.guard(), f.echo(), f.daddrIn(restrictedEcho4), f.sourceNotIn(allowed4), drop()),
			// ip daddr . meta l4proto . th dport @restricted_port4
			//   ip daddr . meta l4proto . th dport . ip saddr != @allowed_port4 counter drop
			newRule("loadBalancerSourceRanges of a PortList Service: ports",
				f.guard(), f.portIn(restrictedPort4), f.portSourceNotIn(allowedPort4), drop()))
	}
	return rules
}

func ingressGuardRules() []rule {
	rules := []rule{
		// ct state established accept
		newRule("an established packet costs this one rule", ctState(expr.CtStateBitESTABLISHED), accept()),
		// ct state related meta l4proto { icmp, ipv6-icmp } accept
		relatedICMP(),
		// icmpv6 type { nd-router-solicit, ... } ip6 hoplimit 255 accept
		neighbourDiscovery(),
	}
	for _, f := range families() {
		// iifname @workload_if ip saddr @public4 counter drop
		rules = append(rules, newRule("a local workload borrows a public address as its source",
			iifIn(workloadIf), f.guard(), f.saddrIn(public4), drop()))
	}
	for _, f := range families() {
		// iifname @tenant_if ip saddr @public4 counter drop
		rules = append(rules, newRule("a tenant borrows a public address as its source",
			iifIn(tenantIf), f.guard(), f.saddrIn(public4), drop()))
	}
	for _, f := range families() {
		// iifname @workload_if ip saddr @managed4 fib saddr . iif oif missing counter drop
		rules = append(rules, newRule("a local workload borrows the address of another, and with it its identity outside",
			iifIn(workloadIf), f.guard(), f.saddrIn(managed4), noWayBack(), drop()))
	}
	for _, f := range families() {
		// ct state related ip daddr @listed4 counter drop
		rules = append(rules, newRule("a conntrack helper opens nothing that is not listed",
			ctState(expr.CtStateBitRELATED), f.guard(), f.daddrIn(listed4), drop()))
	}
	// jump source_ranges
	rules = append(rules, newRule("new packets: is the client admitted?", jump(sourceRanges)))
	rules = append(rules, hostedRules()...)
	for _, f := range families() {
		// ct state invalid,untracked iifname @uplink_if ip daddr @public4 counter drop
		rules = append(rules, newRule("from outside and never translated: would go back to the router",
			ctState(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED), iifIn(uplinkIf), f.guard(), f.daddrIn(public4), drop()))
	}
	return rules
}

// relatedICMP looks up the protocol in an anonymous set.
func relatedICMP() rule {
	r := newRule("an error about a tracked flow, path MTU for one", ctState(expr.CtStateBitRELATED),
		match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, in("", false)}, accept())
	r.anonymous = bytesOf(nftables.TypeInetProto, []byte{unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6})
	return r
}

// neighbourDiscovery looks up the ICMPv6 type in an anonymous set. MLD needs no such rule: it goes from a link-local address to a
// group, and no rule matches those.
func neighbourDiscovery() rule {
	six := families()[1]
	r := newRule("neighbour discovery, which the kernel never tracks",
		six.guard(), six.isICMP(), match{icmpType(), in("", false)}, hopLimit(neighbourHopLimit), accept())
	r.anonymous = bytesOf(nftables.TypeICMP6Type, neighbourTypes())
	return r
}

// hostedRules drops what the kernel does not track, so that NAT never sees it, on its way to an address hosted here.
func hostedRules() []rule {
	var rules []rule
	for _, f := range families() {
		// ct state invalid,untracked ip daddr @hosted4 counter drop
		rules = append(rules, newRule("hosted here and never translated: no flow to translate by",
			ctState(expr.CtStateBitINVALID|expr.CtStateBitUNTRACKED), f.guard(), f.daddrIn(hosted4), drop()))
	}
	return rules
}

// localGuardRules is for the connections of the node's own processes.
func localGuardRules() []rule {
	rules := []rule{
		// ct state established accept
		newRule("an established packet costs this one rule", ctState(expr.CtStateBitESTABLISHED), accept()),
		// icmpv6 type { nd-router-solicit, ... } ip6 hoplimit 255 accept
		neighbourDiscovery(),
		// jump source_ranges
		newRule("source ranges hold for the node's own processes too", jump(sourceRanges)),
	}
	return append(rules, hostedRules()...)
}

// egressGuardRules keeps private sources in. It runs after source translation.
func egressGuardRules() []rule {
	const untranslatable = expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED
	const translated = ipsSrcNAT | ipsDstNAT
	rules := []rule{
		// ct status snat,dnat accept
		// Whether it is established makes no difference, and asking would be felt: every packet comes by here.
		newRule("translated: an established packet costs this one rule", ctStatus(translated), accept()),
		// icmpv6 type { nd-router-solicit, ... } ip6 hoplimit 255 accept
		neighbourDiscovery(),
	}
	for _, f := range families() {
		// ct state invalid,untracked ip saddr @managed4 ip daddr != @cluster4 counter drop
		rules = append(rules, newRule("from a backend and never translated: no flow to translate by",
			ctState(untranslatable), f.guard(), f.saddrIn(managed4), f.daddrNotIn(cluster4), drop()))
	}
	for _, f := range families() {
		// iifname @uplink_if oifname @uplink_if ip daddr @public4 counter drop
		rules = append(rules, newRule("an old flow, never translated: would go back to the router",
			iifIn(uplinkIf), oifIn(uplinkIf), f.guard(), f.daddrIn(public4), drop()))
	}
	for _, f := range families() {
		// oifname @uplink_if ip saddr @managed4 ip daddr != @cluster4 jump leak
		rules = append(rules, newRule("leaves with the private address of a backend",
			oifIn(uplinkIf), f.guard(), f.saddrIn(managed4), f.daddrNotIn(cluster4), jump(leak)))
	}
	for _, f := range families() {
		// oifname @uplink_if ip saddr @shard_sources4 ip daddr != @shard_sources4 ip daddr != @cluster4
		//   fib saddr type != local jump leak
		rules = append(rules, newRule("leaves with a private source that the shard answers for",
			oifIn(uplinkIf), f.guard(), f.saddrIn(shardSources4), f.daddrNotIn(shardSources4), f.daddrNotIn(cluster4),
			notLocalSource(), jump(leak)))
	}
	return rules
}

// leakRules decides about a packet that leaves with a private source.
func leakRules() []rule {
	rules := []rule{
		// ct direction reply return
		newRule("answers a connection that came to the private address", ctReply(), goBack()),
	}
	for _, f := range families() {
		// ct original ip daddr @cluster4 return
		rules = append(rules, newRule("dialled in-cluster, sent outside by others", f.dialledIn(cluster4), goBack()))
	}
	// counter drop
	return append(rules, newRule("private source, untranslated", drop()))
}
