// Package poll asks the kernel what a descriptor is ready for, with an answer that no
// signal takes away: one that is pending interrupts even a poll that does not wait, and
// the runtime of Go sends itself some.
package poll
