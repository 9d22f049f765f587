//go:build linux

package e2b_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/e2b"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
)

// TestRefusedPlans: what no service can be asked for is refused by its name, and nothing is sent.
func TestRefusedPlans(t *testing.T) {
	e, err := e2b.New(e2b.Options{APIKey: key, APIURL: "http://127.0.0.1:1", Inner: func() ([]byte, error) { return nil, nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for says, change := range map[string]func(*engine.Plan){
		"a limit":                func(p *engine.Plan) { p.Limits.MemoryBytes = 1 << 30 },
		"a read-only root":       func(p *engine.Plan) { p.Root.ReadOnly = true },
		"the root of a snapshot": func(p *engine.Plan) { p.Root.Upper = "/x" },
		"saved memory":           func(p *engine.Plan) { p.Memory = &engine.Memory{Dir: "/x"} },
		"rules on paths":         func(p *engine.Plan) { p.Rules = []engine.PathRule{{Target: "/w", Path: ".env"}} },
		"a mount at /w":          func(p *engine.Plan) { p.Mounts = []engine.Mount{{Source: "/x", Target: "/w"}} },
		"outlives it":            func(p *engine.Plan) { p.Volumes = []engine.Volume{{Name: "kept", Target: "/w"}} },
		"read-only":              func(p *engine.Plan) { p.Volumes = []engine.Volume{{Target: "/w", ReadOnly: true}} },
		"of this machine":        func(p *engine.Plan) { p.Volumes = []engine.Volume{{Target: "/w", Source: "/x"}} },
	} {
		p := enginetest.Plan(t, enginetest.Images{})
		p.Limits = engine.Limits{}
		change(&p)
		if _, err := e.Create(t.Context(), p); api.CodeOf(err) != api.CodeUnsupported || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if err := e.RemoveVolume(t.Context(), "none"); err != nil {
		t.Errorf("remove a volume that does not exist: %v", err)
	}
	if _, err := e.Recover(t.Context(), []byte(`{"version":1,"id":"a","owner":"b","api":"https://other.example","sandbox":"x","lifetime_s":1}`)); api.CodeOf(err) != api.CodeUnavailable || !strings.Contains(err.Error(), "another service") {
		t.Errorf("a sandbox of another service: %v", err)
	}
	for _, state := range []string{"", "{", `{"version":2}`, `{"version":1,"id":"a","owner":"b","sandbox":"../x","lifetime_s":1}`} {
		if _, err := e.Recover(t.Context(), []byte(state)); api.CodeOf(err) != api.CodeNotFound {
			t.Errorf("state %q: %v", state, err)
		}
	}
}
