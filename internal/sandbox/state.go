package sandbox

import (
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/stage"
)

// transitions is the state machine: from each state, where a sandbox may go.
//
//	creating ─► running ◄─► paused ─► stopping ─► stopped
//	              ├─► stopping │         ▲
//	              └─► lost ◄───┘       failed
//
// A suspend goes on from paused to suspended, and a resume from there to running; suspended may go to stopping.
//
// From each of them a sandbox may go to deleting, and from there to nothing: a
// removal waits for what is going on and then takes the record away. failed is one
// that an earlier daemon left and this one cannot reach.
var transitions = map[api.State][]api.State{
	api.StateCreating:  {api.StateRunning, api.StateDeleting},
	api.StateRunning:   {api.StatePaused, api.StateStopping, api.StateLost, api.StateDeleting},
	api.StatePaused:    {api.StateRunning, api.StateSuspended, api.StateStopping, api.StateLost, api.StateDeleting},
	api.StateSuspended: {api.StateRunning, api.StateStopping, api.StateDeleting},
	api.StateStopping:  {api.StateStopped, api.StateDeleting},
	api.StateFailed:    {api.StateStopping, api.StateDeleting},
	api.StateLost:      {api.StateDeleting},
	api.StateStopped:   {api.StateDeleting},
	api.StateDeleting:  {},
}

// mayMove reports whether the machine has an edge between two states.
func mayMove(from, to api.State) bool {
	return slices.Contains(transitions[from], to)
}

// move changes the state, or says why it cannot. The caller holds s.mu.
func (s *live) move(to api.State, reason string) error {
	if !mayMove(s.info.State, to) {
		return api.Errorf(api.CodeState, "sandbox %s is %s and cannot become %s", s.info.Name, s.info.State, to)
	}
	s.info.State, s.info.Reason = to, reason
	return nil
}

// notRunning is the error for a call that needs a running sandbox.
func notRunning(info api.Sandbox) *api.Error {
	if info.State.Held() {
		return api.Errorf(api.CodeState, "sandbox %s is %s", info.Name, info.State).WithHint("cloche resume %s", info.Name)
	}
	err := api.Errorf(api.CodeState, "sandbox %s is %s, not running", info.Name, info.State)
	err.TerminalReason = info.TerminalReason
	if info.Reason != "" {
		err.Message += ": " + info.Reason
	}
	if info.State == api.StateCreating {
		return err.WithHint("try again when it is running")
	}
	if info.State.Over() && !info.Transient {
		return err.WithHint("cloche start %s", info.Name)
	}
	return err.WithHint("its records and logs can be read until it is removed; to run something, make another")
}

// check returns an error if the State and the stages of a sandbox are an illegal combination. The
// caller holds s.mu.
func (s *live) check() error {
	if stage.Legal(s.info.State, s.making, s.teardown) {
		return nil
	}
	return fmt.Errorf("sandbox %s is %q at stage %d of its creation and stage %d of its teardown", s.id, s.info.State, s.making, s.teardown)
}
