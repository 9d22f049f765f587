// Package stage has the stages of the creation and of the teardown of a sandbox, beside its state, and
// which of their combinations are legal.
package stage
