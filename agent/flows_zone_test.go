// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/natplane/natplane/testenv"
)

// TestFlowsInOtherZonesEndToo: somebody gives the traffic of the machine a zone, for both directions or for the first one only.
func TestFlowsInOtherZonesEndToo(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"ct zone set 7", "ct original zone set 7"} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			s := wholeStage(t, testenv.WithRouterPodRoutes(false))
			s.topo.NodeA.NS.NftScript(t, fmt.Sprintf(`
table inet zones {
	chain zones {
		type filter hook prerouting priority raw;
		iifname { "up0", %q } %s
	}
}`, s.machine.NodeIf, statement))
			both := s.converseBoth(t, 10)
			for _, c := range both {
				flows := through(t, s.topo.NodeA.NS, c.public)
				require.NotEmpty(t, flows)
				for _, f := range flows {
					require.EqualValues(t, 7, f.Zone+f.Orig.Zone, "%v", f)
				}
			}
			s.objects.deleteService(tenantNamespace + "web")
			s.settle()
			for _, c := range both {
				c.requireInCut(t)
				c.requireOutCut(t)
				c.requireNoFlow(t, s.machine)
			}
		})
	}
}
