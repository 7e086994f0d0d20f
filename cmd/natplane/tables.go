// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/natplane/natplane/nat"
)

// printTables shows translations, with the number of the flows of each where that is known (not nil), and verdicts.
func printTables(w io.Writer, translations []nat.Translation, flows []int, verdicts []nat.Verdict) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	header := "PUBLIC\tMETHOD\tBACKEND\tPORTS\tPRIMARY\tOWNER"
	if flows != nil {
		header += "\tFLOWS"
	}
	fmt.Fprintln(t, header)
	for i, tr := range translations {
		backend := "-"
		if tr.Backend.IsValid() {
			backend = tr.Backend.String()
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s", tr.Public, tr.Method, backend, ports(tr), yes(tr.Primary), tr.Owner)
		if flows != nil {
			fmt.Fprintf(t, "\t%d", flows[i])
		}
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "OBJECT\tPROGRAMMED\tREASON\tEGRESS\tMESSAGE")
	for _, v := range verdicts {
		fmt.Fprintf(t, "%s %s/%s\t%s\t%s\t%s\t%s\n", v.Kind, v.Namespace, v.Name, yes(v.Programmed), v.Reason, addresses(v.PrimaryEgress), v.Message)
	}
	return t.Flush()
}

func ports(t nat.Translation) string {
	if t.Method != nat.PortList {
		return "all"
	}
	var list []string
	for _, p := range t.Ports {
		s := strings.ToLower(p.Protocol) + "/" + strconv.Itoa(int(p.Port))
		if p.TargetPort != p.Port {
			s += "->" + strconv.Itoa(int(p.TargetPort))
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ",")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func addresses(list []netip.Addr) string {
	if len(list) == 0 {
		return "-"
	}
	var texts []string
	for _, a := range list {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
