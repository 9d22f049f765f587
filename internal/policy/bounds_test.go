package policy_test

import (
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// How many handlers and how many channels a job has is bounded each by itself.
func TestJobCounts(t *testing.T) {
	job := func(handlers, channels int) api.JobSpec {
		p := api.JobSpec{Sandbox: "box", Run: api.JobPhase{Commands: []api.JobCommand{{Argv: []string{"true"}}}}}
		for i := range handlers {
			p.Handlers = append(p.Handlers, api.JobHandler{Name: "h" + strings.Repeat("x", i), Wait: true})
		}
		p.Channels = make([]api.ProcessSpec, channels)
		return p
	}
	for _, c := range []struct{ handlers, channels int }{{65, 0}, {0, 33}, {65, 33}} {
		err := policy.CheckJob(job(c.handlers, c.channels))
		if api.CodeOf(err) != api.CodeTooLarge || !strings.Contains(err.Error(), "handlers and") {
			t.Errorf("%d handlers and %d channels: %v", c.handlers, c.channels, err)
		}
	}
	for _, handlers := range []int{0, 1, 63} {
		if err := policy.CheckJob(job(handlers, 0)); err != nil {
			t.Errorf("%d handlers: %v", handlers, err)
		}
	}
	if err := policy.CheckJob(job(64, 0)); api.CodeOf(err) == api.CodeTooLarge {
		t.Errorf("64 handlers are too many: %v", err)
	}
}

// A path of Windows is called one for every letter of a drive, and nothing else is.
func TestDriveLetters(t *testing.T) {
	for first, windows := range map[string]bool{"a": true, "z": true, "A": true, "Z": true, "m": true, "`": false, "{": false, "@": false, "[": false, "1": false} {
		_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Cwd: first + `:/x`}, Facts: facts()}, operator, rules.Rules{})
		if api.CodeOf(err) != api.CodeInvalid || strings.Contains(err.Error(), "Windows") != windows {
			t.Errorf("%s:/x: %v", first, err)
		}
	}
	for _, short := range []string{"a", ":", "a/"} {
		if _, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Cwd: short}, Facts: facts()}, operator, rules.Rules{}); api.CodeOf(err) != api.CodeInvalid || strings.Contains(err.Error(), "Windows") {
			t.Errorf("%q: %v", short, err)
		}
	}
}
