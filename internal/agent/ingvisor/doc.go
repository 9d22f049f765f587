// Package ingvisor holds the tests of the agent as the first process of a gVisor
// sandbox, apart from its own package so that no other test is built with gVisor.
package ingvisor
