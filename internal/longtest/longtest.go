// Package longtest keeps what is slow out of go test -short. It is for tests only.
package longtest

import "testing"

// Skip skips a test of a run with -short. What says what the test does that such a run
// leaves out: it starts sandboxes, daemons, containers or machines, or takes seconds.
func Skip(t testing.TB, what string) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a run without -short: " + what)
	}
}
