//go:build linux

package core_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// TestScoreAlways: a run that came to an end is scored although it failed, if that was
// asked for; where there is nothing to score, nothing is.
func TestScoreAlways(t *testing.T) {
	h := newFixture(t)
	for name, tc := range map[string]struct {
		run    api.JobCommand
		always bool
		kind   api.FailureKind
		scored bool
	}{
		"a failure, scored":        {api.JobCommand{Shell: "exit 3"}, true, api.FailureExit, true},
		"a failure, not asked for": {api.JobCommand{Shell: "exit 3"}, false, api.FailureExit, false},
		"out of time":              {api.JobCommand{Shell: "sleep 100", TimeoutMS: 50}, true, api.FailureTimeout, true},
		"nothing ran":              {api.JobCommand{Argv: []string{"no-such-job"}}, true, api.FailureRequest, false},
		"no failure":               {api.JobCommand{Shell: "true"}, true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := in(t.TempDir())
			spec.Run = api.JobPhase{Commands: []api.JobCommand{tc.run}}
			spec.Score, spec.ScoreAlways = sh("echo scored"), tc.always
			p := h.ended(t, operator, spec)
			if kind := kindOf(p); kind != tc.kind {
				t.Errorf("it ended %s with %q, want %q", p.State, kind, tc.kind)
			}
			if scored := p.Score != nil && string(p.Score.Output) == "scored\n"; scored != tc.scored {
				t.Errorf("score %+v, want one: %v", p.Score, tc.scored)
			}
			h.emptyFixture(t)
		})
	}
}

func kindOf(p api.Job) api.FailureKind {
	if p.Failure == nil {
		return ""
	}
	return p.Failure.Kind
}

// TestALifetimeThatIsOver ends a job as expired, which another try does not fix.
func TestALifetimeThatIsOver(t *testing.T) {
	h := newFixture(t)
	spec := in(t.TempDir())
	spec.Spec.Limits.LifetimeMS = 4000 // creating it takes a part of that on a busy machine
	spec.Run = *sh("sleep 1000")
	p := h.ended(t, operator, spec)
	f := p.Failure
	if f == nil || f.Kind != api.FailureExpired || f.Class != api.ClassLimit || f.Retryable {
		t.Errorf("%s: %+v", p.State, f)
	}
	h.emptyFixture(t)
}
