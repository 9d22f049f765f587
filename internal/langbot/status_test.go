//go:build linux

package langbot

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// The backends, and why one is unavailable, are the same in each answer; existing
// sessions stay listed. A client whose runtime does not answer is tested by
// LangBot here, and client.Client's in the fixture.
func TestWhyThereIsNoBackend(t *testing.T) {
	p := &placement{"inst-1", "ws-1", 1}
	broken := api.EngineReport{Name: "docker", Problems: []api.Problem{{What: "no daemon answers"}}}
	for name, c := range map[string]struct {
		config string
		change func(*fakeCore)
		named  string
		reason string
	}{
		"it can be had":              {change: func(*fakeCore) {}, named: "fake"},
		"disabled":                   {change: func(f *fakeCore) { f.disabled = true }, reason: "the operator's rules switch sandboxes off"},
		"disabled, whatever is down": {config: `{"backend":"docker"}`, change: func(f *fakeCore) { f.disabled, f.down = true, true }, reason: "the operator's rules switch sandboxes off"},
		"the operator's is down":     {change: func(f *fakeCore) { f.down = true }, named: "fake", reason: "it is down"},
		"the named one is down":      {config: `{"backend":"docker"}`, change: func(f *fakeCore) { f.engines = []api.EngineReport{broken} }, named: "docker", reason: "engine docker is not usable here: no daemon answers"},
		"not part of this build":     {config: `{"backend":"e2b"}`, change: func(*fakeCore) {}, named: "e2b", reason: "engine e2b is not part of this build"},
		"local, and the own is down": {config: `{"backend":"local"}`, change: func(f *fakeCore) { f.engines, f.down = []api.EngineReport{broken}, true }, named: "fake", reason: "it is down"},
		"local, neither is found":    {config: `{"backend":"local"}`, change: func(f *fakeCore) { f.engines = []api.EngineReport{broken} }, named: "fake"},
		"no such backend":            {config: `{"backend":"host"}`, change: func(*fakeCore) {}, reason: "there is no backend host"},
	} {
		d := newServer(t, nil)
		d.must("box_create_session", p, obj{"session_id": "before"})
		if c.config != "" {
			var config obj
			if err := json.Unmarshal([]byte(c.config), &config); err != nil {
				t.Fatal(err)
			}
			d.must("box_init", nil, config)
		}
		d.core.mu.Lock()
		c.change(d.core)
		d.core.mu.Unlock()
		up := c.reason == ""
		for _, got := range []any{d.must("box_status", p, obj{})["backend"], map[string]any(d.must("box_get_backend_info", nil, obj{})), map[string]any(d.must("box_health", nil, obj{}))} {
			info := got.(obj)
			if reason, _ := info["reason"].(string); info["available"] != up || reason != c.reason || (info["name"] == nil) != (c.named == "") || c.named != "" && info["name"] != c.named {
				t.Errorf("%s: %v", name, info)
			}
		}
		r, err := http.Get(d.url + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		if (r.StatusCode == http.StatusOK) != up {
			t.Errorf("%s: readyz is %d", name, r.StatusCode)
		}
		if got := d.ids(p); got != "before" {
			t.Errorf("%s: the sessions are %q", name, got)
		}
		d.must("box_exec", p, obj{"session_id": "before", "cmd": "x"})
		created := d.ask("box_create_session", p, obj{"session_id": "after"})
		if up != (created.Code == 0) || !up && (!strings.HasPrefix(created.Message, "BoxBackendUnavailableError: ") || !strings.Contains(created.Message, c.reason)) {
			t.Errorf("%s: a create: %+v", name, created)
		}
	}
}
