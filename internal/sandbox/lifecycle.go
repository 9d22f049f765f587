package sandbox

import (
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// making is how far a sandbox is on record.
//
//	unrecorded ─► recorded ─► announced
//	    └─► canceled ─┘                    unreadable
//
// The next daemon lists what is recorded. unreadable is where a sandbox begins whose record an
// earlier daemon wrote and this one cannot read: the record is kept as it is.
type making uint8

const (
	makingUnrecorded making = iota
	// makingCanceled: a caller deleted the sandbox during its creation, which must not succeed
	// any more. What is left of it gets a record if its removal fails and is requested again.
	makingCanceled
	makingRecorded
	// makingAnnounced: an event has told of the sandbox.
	makingAnnounced
	makingUnreadable
)

// teardown is how far the end or the removal of a sandbox is.
//
//	none ◄─► due ─► removing ─► erasing ─► removed
//	  └────────────────┘
//
// A removal that has begun goes on until it is done, also in the next daemon. A stop leaves a
// sandbox at none: its State says how far that is.
type teardown uint8

const (
	teardownNone teardown = iota
	// teardownDue: the reaper has begun to end or remove the sandbox.
	teardownDue
	// teardownRemoving: a removal has begun.
	teardownRemoving
	// teardownErasing: the directory is being removed, and nothing is written there any more.
	teardownErasing
	// teardownRemoved: nothing is left of the sandbox.
	teardownRemoved
)

// makingSteps and teardownSteps are the edges of the machines.
var (
	makingSteps = map[making][]making{
		makingUnrecorded: {makingCanceled, makingRecorded},
		makingCanceled:   {makingRecorded},
		makingRecorded:   {makingAnnounced},
		makingAnnounced:  {},
		makingUnreadable: {},
	}
	teardownSteps = map[teardown][]teardown{
		teardownNone:     {teardownDue, teardownRemoving},
		teardownDue:      {teardownNone, teardownRemoving},
		teardownRemoving: {teardownErasing},
		teardownErasing:  {teardownRemoved},
		teardownRemoved:  {},
	}
)

// step goes to another stage and reports whether the machine has that edge. It stays where it is
// if not: a step that was taken before, or that a later one has overtaken, changes nothing.
func (m *making) step(to making) bool {
	if !slices.Contains(makingSteps[*m], to) {
		return false
	}
	*m = to
	return true
}

// recorded reports whether a record was written.
func (m making) recorded() bool {
	return m == makingRecorded || m == makingAnnounced || m == makingUnreadable
}

// announced reports whether an event has told of the sandbox, in this daemon or an earlier one.
func (m making) announced() bool { return m == makingAnnounced || m == makingUnreadable }

// step goes to another stage and reports whether the machine has that edge, as making's does.
func (t *teardown) step(to teardown) bool {
	if !slices.Contains(teardownSteps[*t], to) {
		return false
	}
	*t = to
	return true
}

// removing reports whether a removal has begun, or is done.
func (t teardown) removing() bool { return t >= teardownRemoving }

// erasing reports whether nothing is written to the directory any more.
func (t teardown) erasing() bool { return t >= teardownErasing }

// combinations are the stages of both machines that are legal with each State, as they are when
// no goroutine holds the sandbox's mu.
var combinations = map[api.State]struct {
	making   []making
	teardown []teardown
}{
	api.StateCreating: {
		[]making{makingUnrecorded, makingCanceled},
		[]teardown{teardownNone},
	},
	// The stages before announced are of a creation whose record could not be written, until that
	// is undone. A call that comes in between may find the sandbox.
	api.StateRunning: {
		[]making{makingUnrecorded, makingRecorded, makingAnnounced},
		[]teardown{teardownNone, teardownDue, teardownRemoving},
	},
	api.StatePaused: {
		[]making{makingUnrecorded, makingRecorded, makingAnnounced},
		[]teardown{teardownNone, teardownDue, teardownRemoving},
	},
	// An attempt of a stop that is being retried sees a removal before that has changed the State.
	api.StateStopping: {
		[]making{makingUnrecorded, makingRecorded, makingAnnounced, makingUnreadable},
		[]teardown{teardownNone, teardownDue, teardownRemoving, teardownErasing, teardownRemoved},
	},
	api.StateLost: {
		[]making{makingAnnounced},
		[]teardown{teardownNone, teardownDue, teardownRemoving, teardownErasing, teardownRemoved},
	},
	// The reaper leaves what this daemon cannot reach.
	api.StateFailed: {
		[]making{makingAnnounced, makingUnreadable},
		[]teardown{teardownNone, teardownRemoving},
	},
	api.StateStopped: {
		[]making{makingUnrecorded, makingRecorded, makingAnnounced, makingUnreadable},
		[]teardown{teardownNone, teardownDue, teardownRemoving},
	},
	api.StateDeleting: {
		[]making{makingUnrecorded, makingCanceled, makingRecorded, makingAnnounced, makingUnreadable},
		[]teardown{teardownRemoving, teardownErasing, teardownRemoved},
	},
}

// legal reports whether a sandbox may be in all three at once.
func legal(state api.State, m making, t teardown) bool {
	c := combinations[state]
	return slices.Contains(c.making, m) && slices.Contains(c.teardown, t)
}

// check returns an error if the State and the stages of a sandbox are an illegal combination. The
// caller holds s.mu.
func (s *live) check() error {
	if legal(s.info.State, s.making, s.teardown) {
		return nil
	}
	return fmt.Errorf("sandbox %s is %q at stage %d of its creation and stage %d of its teardown", s.id, s.info.State, s.making, s.teardown)
}
