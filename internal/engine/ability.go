package engine

import "github.com/cloche-dev/cloche/api"

// Able is an Engine that declares its abilities.
type Able interface {
	// Abilities returns the same value on every machine, whether the engine is usable there or
	// not.
	Abilities() Abilities
}

// Abilities are what an engine can do on a machine that supports it. Whether a machine does is in
// its Report. The documentation of engines shows these values.
type Abilities struct {
	// Tier is the strength of the isolation. The runtime that the engine drives can be stronger.
	Tier api.Tier
	// Link means that the engine accepts a Plan with a Link.
	Link bool
	// Pinned means that the engine supports Mount.Pinned, which rules on paths require.
	Pinned bool
	// Pause means that its instances implement Pauser.
	Pause bool
	// Layer means that its instances implement RootWriter and can start from a layer that
	// RootWriter wrote.
	Layer bool
	// Refusals means that its instances implement Refuser.
	Refusals bool
	// Suspend means that its instances implement Suspender, and that the engine accepts a Plan with
	// a Memory.
	Suspend bool
}
