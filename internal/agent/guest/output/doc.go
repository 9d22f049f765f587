// Package output keeps what processes write: a bounded [Log] for readers that follow it, and a
// [Collector] for the result of one exec.
package output
