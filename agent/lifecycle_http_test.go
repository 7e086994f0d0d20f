// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/natplane/natplane/agent"
	"github.com/natplane/natplane/nat"
	"github.com/natplane/natplane/testenv"
)

// httpStage has the machine web with a whole address, and an agent that serves HTTP.
func httpStage(t testing.TB) (s *stage, client *http.Client, url string) {
	t.Helper()
	p := emptyTenant(t)
	p.serveLater(p.topo.Web, exposure{name: "web", public: dual(10), whole: true})
	node := p.topo.NodeA.NS
	p.start("node-a", func(o *agent.Options) {
		o.HTTP, url = listenIn(t, node)
		o.Source.(*memorySource).complete = false
	})
	return newStage(t, p, p.topo.Web), clientIn(node), url
}

func TestProbesSayWhetherTheNodeTranslates(t *testing.T) {
	t.Parallel()
	s, client, url := httpStage(t)
	require.Equal(t, answered{200, "ok\n"}, ask(t, client, url+"/healthz"))
	require.Equal(t, answered{503, "waiting for every kind of object to be read once\n"}, ask(t, client, url+"/readyz"))
	s.agents["node-a"].source.finish()
	s.settle()
	require.Equal(t, answered{200, "ok\n"}, ask(t, client, url+"/readyz"))
	require.Equal(t, 404, ask(t, client, url+"/elsewhere").code)
	response, err := client.Post(url+"/healthz", "text/plain", nil)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusMethodNotAllowed, response.StatusCode)
}

type answered struct {
	code int
	body string
}

func ask(t testing.TB, client *http.Client, url string) answered {
	t.Helper()
	code, body, err := get(client, url)
	require.NoError(t, err)
	return answered{code, body}
}

// TestMetricsAreDocumented: what is served is named in docs/operations.md, and the other way round.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	s, client, url := httpStage(t)
	s.objects.change(shard(200)) // which has metrics of its own
	s.agents["node-a"].source.finish()
	s.settle()
	served := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (natplane_\w+) `).FindAllStringSubmatch(ask(t, client, url+"/metrics").body, -1) {
		served[m[1]] = true
	}
	require.NotEmpty(t, served)
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	patterns := regexp.MustCompile("`(natplane_[a-z_*]+)").FindAllStringSubmatch(string(text), -1)
	used := map[string]bool{}
	for name := range served {
		documented := false
		for _, p := range patterns {
			if ok, err := path.Match(p[1], name); err == nil && ok {
				documented, used[p[1]] = true, true
			}
		}
		require.True(t, documented, "%s is not in docs/operations.md", name)
	}
	for _, p := range patterns {
		require.True(t, used[p[1]], "%s is in docs/operations.md and not served", p[1])
	}
}

func TestStateShowsTranslationsAndFlows(t *testing.T) {
	t.Parallel()
	s, client, url := httpStage(t)
	s.agents["node-a"].source.finish()
	s.settle()
	s.through(t, 10, true)
	var report agent.Report
	got := ask(t, client, url+"/debug/state")
	require.Equal(t, http.StatusOK, got.code)
	require.NoError(t, json.Unmarshal([]byte(got.body), &report))
	require.Equal(t, "node-a", report.Node)
	require.True(t, report.Health.Ready)
	require.Len(t, report.Translations, 2)
	for _, tr := range report.Translations {
		require.Equal(t, tenantNamespace+"web", tr.Owner)
		require.True(t, tr.Primary)
		require.Equal(t, s.machine.Addr(testenv.FamilyOf(tr.Public)), tr.Backend)
		require.Equal(t, 4, tr.Flows, "TCP and UDP, in and out: %s", tr.Public)
	}
	require.Len(t, report.Verdicts, 1)
	require.Positive(t, report.Audit.Passes)
	require.Empty(t, report.Problems)
}

// TestStateTellsOfANodeNameThatIsNobodys: a slip in --node-name takes every translation away, and must not go unsaid.
func TestStateTellsOfANodeNameThatIsNobodys(t *testing.T) {
	t.Parallel()
	s, client, url := httpStage(t)
	s.agents["node-a"].source.finish()
	problems := func(own *corev1.Node) []string {
		batch := nat.NewObjects()
		batch.Nodes["node-a"] = own
		s.objects.change(batch)
		s.settle()
		var report agent.Report
		require.NoError(t, json.Unmarshal([]byte(ask(t, client, url+"/debug/state").body), &report))
		return report.Problems
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	require.Empty(t, problems(own))
	require.Equal(t, []string{`none of the Node objects is named "node-a": is --node-name right?`}, problems(nil))
	require.Empty(t, problems(own))
}

// TestStopIsGraceful: a stopping agent answers what it was asked, and no connection of a client that says nothing keeps it.
func TestStopIsGraceful(t *testing.T) {
	t.Parallel()
	s, client, url := httpStage(t)
	s.agents["node-a"].source.finish()
	s.settle()
	address := url[len("http://"):]
	var silent net.Conn
	require.NoError(t, s.topo.NodeA.NS.Do(func() (err error) {
		silent, err = net.Dial("tcp", address)
		return err
	}))
	defer func() { require.NoError(t, silent.Close()) }()
	_, err := silent.Write([]byte("GET /healthz HTTP/1.1\r\n")) // and never the rest
	require.NoError(t, err)
	require.Equal(t, 200, ask(t, client, url+"/healthz").code)

	before := elements(t, s.topo.NodeA.NS)
	begin := time.Now()
	s.stop("node-a")
	require.Less(t, time.Since(begin), patience)
	require.Equal(t, before, elements(t, s.topo.NodeA.NS), "translation stays")
	_, _, err = get(client, url+"/healthz")
	require.Error(t, err, "nobody listens any more")
	s.through(t, 10, true)
}
