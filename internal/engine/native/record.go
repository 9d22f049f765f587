//go:build linux

package native

import (
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// record is all there is to know about an instance in order to find it again or to
// remove it. It is also its State.
type record struct {
	lifecycle.Head
	// Init is the first process, the agent; zero before it is started.
	Init pidfd.ID `json:"init,omitzero"`
	// Jail is the program above it; zero without one.
	Jail pidfd.ID `json:"jail,omitzero"`
	// IDs is where the sandbox's range of ids begins on the host; 0 without a range.
	IDs uint32 `json:"ids,omitempty"`
}

// blank is the record of an instance of which only the names are known.
func blank(h lifecycle.Head) record { return record{Head: h} }
