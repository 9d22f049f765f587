// Package longtest keeps what is slow out of go test -short. It is for tests only.
package longtest

import (
	"os"
	"testing"
)

// envSlow in the environment lets a run with -short have the slow tests too. The
// search for changes that no test notices sets it: it wants the short forms of other tests.
const envSlow = "CLOCHE_TEST_SLOW"

// Skip skips a test of a run with -short. What says what the test does that such a run
// leaves out: it starts sandboxes, daemons, containers or machines, or takes seconds.
func Skip(t testing.TB, what string) {
	t.Helper()
	if testing.Short() && os.Getenv(envSlow) == "" {
		t.Skip("needs a run without -short: " + what)
	}
}
