package engine

import "github.com/cloche-dev/cloche/api"

// Able is an Engine that says what it can do.
type Able interface {
	// Abilities are the same on every machine, usable or not.
	Abilities() Abilities
}

// Abilities are what an engine can do wherever the machine lets it, which its Report
// says. They are what the page about engines shows.
type Abilities struct {
	// Tier is how strongly it isolates, unless what it drives isolates more.
	Tier api.Tier
	// Link: it takes a Plan's Link.
	Link bool
	// Held: it keeps the names in a mount for what they were, so that rules on paths hold.
	Held bool
	// Pause: its instances are Pausers.
	Pause bool
	// Layer: its instances are RootWriters, and begin with what one wrote.
	Layer bool
	// Refusals: its instances are Refusers.
	Refusals bool
}
