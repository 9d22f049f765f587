package stage

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
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

// MayMove reports whether the machine has an edge between two states.
func MayMove(from, to api.State) bool {
	return slices.Contains(transitions[from], to)
}

// NotRunning is the error for a call that needs a running sandbox.
func NotRunning(info api.Sandbox) *api.Error {
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
