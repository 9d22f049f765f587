// Package enginetest proves the sentences of the engine contract against an
// engine. It brings an agent of its own that keeps the contract's promises and
// does nothing else, so that what fails here is the engine.
package enginetest
