package sandbox

import "github.com/cloche-dev/cloche"

// transitions is the state machine: from each state, where a sandbox may go.
//
//	creating ─► running ─► stopping ─► stopped
//	    │          ├─► lost      └─► failed ─► stopped
//	    └─► failed ─► (removed)
//
// A sandbox may be removed from every state but creating, stopping included: a
// removal waits for what is going on and then takes the record away.
var transitions = map[cloche.State][]cloche.State{
	cloche.StateCreating: {cloche.StateRunning, cloche.StateFailed},
	cloche.StateRunning:  {cloche.StateStopping, cloche.StateLost},
	cloche.StateStopping: {cloche.StateStopped, cloche.StateFailed},
	cloche.StateFailed:   {cloche.StateStopping, cloche.StateStopped},
	cloche.StateLost:     {cloche.StateStopping},
	cloche.StateStopped:  {},
}

// mayMove reports whether the machine has an edge between two states.
func mayMove(from, to cloche.State) bool {
	for _, s := range transitions[from] {
		if s == to {
			return true
		}
	}
	return false
}

// move changes the state, or says why it cannot. The caller holds s.mu.
func (s *live) move(to cloche.State, reason string) error {
	if !mayMove(s.info.State, to) {
		return cloche.Errorf(cloche.CodeState, "sandbox %s is %s and cannot become %s", s.info.Name, s.info.State, to)
	}
	s.info.State, s.info.Reason = to, reason
	return nil
}
