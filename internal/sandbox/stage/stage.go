package stage

import (
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Creation is how far a sandbox is on record.
//
//	unrecorded ─► recorded ─► announced
//	    └─► canceled ─┘                    unreadable
//
// The next daemon lists what is recorded. unreadable is where a sandbox begins whose record an
// earlier daemon wrote and this one cannot read: the record is kept as it is.
type Creation uint8

const (
	makingUnrecorded Creation = iota
	// CreationCanceled: a caller deleted the sandbox during its creation, which must not succeed
	// any more. What is left of it gets a record if its removal fails and is requested again.
	CreationCanceled
	CreationRecorded
	// CreationAnnounced: an event has told of the sandbox.
	CreationAnnounced
	CreationUnreadable
)

// Teardown is how far the end or the removal of a sandbox is.
//
//	none ◄─► due ─► removing ─► erasing ─► removed
//	  └────────────────┘
//
// A removal that has begun goes on until it is done, also in the next daemon. A stop leaves a
// sandbox at none: its State says how far that is.
type Teardown uint8

const (
	TeardownNone Teardown = iota
	// TeardownDue: the reaper has begun to end or remove the sandbox.
	TeardownDue
	// TeardownRemoving: a removal has begun.
	TeardownRemoving
	// TeardownErasing: the directory is being removed, and nothing is written there any more.
	TeardownErasing
	// TeardownRemoved: nothing is left of the sandbox.
	TeardownRemoved
)

// makingSteps and teardownSteps are the edges of the machines.
var (
	makingSteps = map[Creation][]Creation{
		makingUnrecorded:   {CreationCanceled, CreationRecorded},
		CreationCanceled:   {CreationRecorded},
		CreationRecorded:   {CreationAnnounced},
		CreationAnnounced:  {},
		CreationUnreadable: {},
	}
	teardownSteps = map[Teardown][]Teardown{
		TeardownNone:     {TeardownDue, TeardownRemoving},
		TeardownDue:      {TeardownNone, TeardownRemoving},
		TeardownRemoving: {TeardownErasing},
		TeardownErasing:  {TeardownRemoved},
		TeardownRemoved:  {},
	}
)

// Step goes to another stage and reports whether the machine has that edge. It stays where it is
// if not: a step that was taken before, or that a later one has overtaken, changes nothing.
func (m *Creation) Step(to Creation) bool {
	if !slices.Contains(makingSteps[*m], to) {
		return false
	}
	*m = to
	return true
}

// Recorded reports whether a record was written.
func (m Creation) Recorded() bool {
	return m == CreationRecorded || m == CreationAnnounced || m == CreationUnreadable
}

// Announced reports whether an event has told of the sandbox, in this daemon or an earlier one.
func (m Creation) Announced() bool { return m == CreationAnnounced || m == CreationUnreadable }

// Step goes to another stage and reports whether the machine has that edge, as making's does.
func (t *Teardown) Step(to Teardown) bool {
	if !slices.Contains(teardownSteps[*t], to) {
		return false
	}
	*t = to
	return true
}

// Removing reports whether a removal has begun, or is done.
func (t Teardown) Removing() bool { return t >= TeardownRemoving }

// Erasing reports whether nothing is written to the directory any more.
func (t Teardown) Erasing() bool { return t >= TeardownErasing }

// combinations are the stages of both machines that are legal with each State, as they are when
// no goroutine holds the sandbox's mu.
var combinations = map[api.State]struct {
	Creation []Creation
	Teardown []Teardown
}{
	api.StateCreating: {
		[]Creation{makingUnrecorded, CreationCanceled},
		[]Teardown{TeardownNone},
	},
	// The stages before announced are of a creation whose record could not be written, until that
	// is undone. A call that comes in between may find the sandbox.
	api.StateRunning: {
		[]Creation{makingUnrecorded, CreationRecorded, CreationAnnounced},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving},
	},
	api.StatePaused: {
		[]Creation{makingUnrecorded, CreationRecorded, CreationAnnounced},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving},
	},
	api.StateSuspended: {
		[]Creation{CreationAnnounced},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving},
	},
	// An attempt of a stop that is being retried sees a removal before that has changed the State.
	api.StateStopping: {
		[]Creation{makingUnrecorded, CreationRecorded, CreationAnnounced, CreationUnreadable},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving, TeardownErasing, TeardownRemoved},
	},
	api.StateLost: {
		[]Creation{CreationAnnounced},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving, TeardownErasing, TeardownRemoved},
	},
	// The reaper leaves what this daemon cannot reach.
	api.StateFailed: {
		[]Creation{CreationAnnounced, CreationUnreadable},
		[]Teardown{TeardownNone, TeardownRemoving},
	},
	api.StateStopped: {
		[]Creation{makingUnrecorded, CreationRecorded, CreationAnnounced, CreationUnreadable},
		[]Teardown{TeardownNone, TeardownDue, TeardownRemoving},
	},
	api.StateDeleting: {
		[]Creation{makingUnrecorded, CreationCanceled, CreationRecorded, CreationAnnounced, CreationUnreadable},
		[]Teardown{TeardownRemoving, TeardownErasing, TeardownRemoved},
	},
}

// Legal reports whether a sandbox may be in all three at once.
func Legal(state api.State, m Creation, t Teardown) bool {
	c := combinations[state]
	return slices.Contains(c.Creation, m) && slices.Contains(c.Teardown, t)
}
