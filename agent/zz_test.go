// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"testing"
	"time"
	"github.com/natplane/natplane/testenv"
)

func TestZZ(t *testing.T) {
	p := wholePlane(t)
	inside := overUDP().serveOn(t, p.topo.Web.NS, 0)
	up := testenv.CaptureT(t, p.topo.NodeA.NS, "up0")
	in := overUDP().connect(t, p.topo.Ext.NS, anywhere(), inside.At(public(4, 10)))
	t.Log(in.RoundTripSize(4000))
	up.WaitFor(time.Second/4, func(testenv.Packet) bool { return false })
	for _, p := range up.Packets() {
		t.Log(p, p.Fragment)
	}
}
