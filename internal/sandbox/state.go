package sandbox

import (
	"slices"

	"github.com/cloche-dev/cloche"
)

// transitions is the state machine: from each state, where a sandbox may go.
//
//	creating ─► running ◄─► paused ─► stopping ─► stopped
//	              ├─► stopping │         ▲
//	              └─► lost ◄───┘       failed
//
// From each of them a sandbox may go to deleting, and from there to nothing: a
// removal waits for what is going on and then takes the record away. failed is one
// that an earlier daemon left and this one cannot reach.
var transitions = map[cloche.State][]cloche.State{
	cloche.StateCreating: {cloche.StateRunning, cloche.StateDeleting},
	cloche.StateRunning:  {cloche.StatePaused, cloche.StateStopping, cloche.StateLost, cloche.StateDeleting},
	cloche.StatePaused:   {cloche.StateRunning, cloche.StateStopping, cloche.StateLost, cloche.StateDeleting},
	cloche.StateStopping: {cloche.StateStopped, cloche.StateDeleting},
	cloche.StateFailed:   {cloche.StateStopping, cloche.StateDeleting},
	cloche.StateLost:     {cloche.StateDeleting},
	cloche.StateStopped:  {cloche.StateDeleting},
	cloche.StateDeleting: {},
}

// mayMove reports whether the machine has an edge between two states.
func mayMove(from, to cloche.State) bool {
	return slices.Contains(transitions[from], to)
}

// move changes the state, or says why it cannot. The caller holds s.mu.
func (s *live) move(to cloche.State, reason string) error {
	if !mayMove(s.info.State, to) {
		return cloche.Errorf(cloche.CodeState, "sandbox %s is %s and cannot become %s", s.info.Name, s.info.State, to)
	}
	s.info.State, s.info.Reason = to, reason
	return nil
}

// notRunning is the error for a call that needs a running sandbox.
func notRunning(info cloche.Sandbox) *cloche.Error {
	if info.State == cloche.StatePaused {
		return cloche.Errorf(cloche.CodeState, "sandbox %s is paused", info.Name).WithHint("cloche resume %s", info.Name)
	}
	err := cloche.Errorf(cloche.CodeState, "sandbox %s is %s, not running", info.Name, info.State)
	err.TerminalReason = info.TerminalReason
	if info.Reason != "" {
		err.Message += ": " + info.Reason
	}
	if info.State == cloche.StateCreating {
		return err.WithHint("try again when it is running")
	}
	return err.WithHint("its records and logs can be read until it is removed; to run something, make another")
}
