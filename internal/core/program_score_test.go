//go:build linux

package core_test

import (
	"testing"

	"github.com/cloche-dev/cloche"
)

// TestScoreAlways: a run that came to an end is scored although it failed, if that was
// asked for; where there is nothing to score, nothing is.
func TestScoreAlways(t *testing.T) {
	h := newHouse(t)
	for name, tc := range map[string]struct {
		run    cloche.ProgramCommand
		always bool
		kind   cloche.FailureKind
		scored bool
	}{
		"a failure, scored":        {cloche.ProgramCommand{Shell: "exit 3"}, true, cloche.FailureExit, true},
		"a failure, not asked for": {cloche.ProgramCommand{Shell: "exit 3"}, false, cloche.FailureExit, false},
		"out of time":              {cloche.ProgramCommand{Shell: "sleep 100", TimeoutMS: 50}, true, cloche.FailureTimeout, true},
		"nothing ran":              {cloche.ProgramCommand{Argv: []string{"no-such-program"}}, true, cloche.FailureRequest, false},
		"no failure":               {cloche.ProgramCommand{Shell: "true"}, true, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			spec := in(t.TempDir())
			spec.Run = cloche.ProgramPhase{Commands: []cloche.ProgramCommand{tc.run}}
			spec.Score, spec.ScoreAlways = sh("echo scored"), tc.always
			p := h.ended(t, operator, spec)
			if kind := kindOf(p); kind != tc.kind {
				t.Errorf("it ended %s with %q, want %q", p.State, kind, tc.kind)
			}
			if scored := p.Score != nil && string(p.Score.Output) == "scored\n"; scored != tc.scored {
				t.Errorf("score %+v, want one: %v", p.Score, tc.scored)
			}
			h.emptyHouse(t)
		})
	}
}

func kindOf(p cloche.Program) cloche.FailureKind {
	if p.Failure == nil {
		return ""
	}
	return p.Failure.Kind
}

// TestALifetimeThatIsOver ends a program as expired, which trying again does not mend.
func TestALifetimeThatIsOver(t *testing.T) {
	h := newHouse(t)
	spec := in(t.TempDir())
	spec.Spec.Limits.LifetimeMS = 4000 // creating it takes a part of that on a busy machine
	spec.Run = *sh("sleep 1000")
	p := h.ended(t, operator, spec)
	f := p.Failure
	if f == nil || f.Kind != cloche.FailureExpired || f.Class != cloche.ClassLimit || f.Retryable {
		t.Errorf("%s: %+v", p.State, f)
	}
	h.emptyHouse(t)
}
