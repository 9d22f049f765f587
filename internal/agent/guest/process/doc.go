// Package process starts processes and manages them: their input and output, signals, restarts,
// readiness, cgroups and terminals.
package process
