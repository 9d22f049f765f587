// Package enginetest tests an engine against the contract of package engine. Call [Run] from a test
// of the engine, with a [Setup] that describes it. The package has its own agent, which does only
// what the contract requires, so a failure is a failure of the engine.
package enginetest
