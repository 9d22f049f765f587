package main

import (
	"errors"
	"slices"
	"testing"
)

// TestJudge: only an input that the fuzzer has found is a finding, and a run that cannot search is an error.
func TestJudge(t *testing.T) {
	exit := errors.New("exit status 1")
	for _, c := range []struct {
		name, out string
		err       error
		want      verdict
	}{
		{"nothing found", "fuzz: elapsed: 2s, execs: 100\nPASS\n", nil, fine},
		{"a finding", "--- FAIL: FuzzX (0.1s)\n    panic\n    Failing input written to testdata/fuzz/FuzzX/1\n", exit, failed},
		{"a finding as the time ended", "    context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\n", exit, failed},
		{"a seed that fails", "--- FAIL: FuzzX (0.0s)\n    x_test.go:1: want 1\n", exit, failed},
		{"the end of the time", "--- FAIL: FuzzX (2.1s)\n    context deadline exceeded\n", exit, late},
		{"a target's own deadline", "--- FAIL: FuzzX (2.1s)\n    x_test.go:1: read: context deadline exceeded\n", exit, failed},
		{"blind", "warning: the test binary was not built with coverage instrumentation, so fuzzing will run without\n", nil, failed},
	} {
		if got := judge(c.out, c.err); got != c.want {
			t.Errorf("%s: verdict %d, want %d", c.name, got, c.want)
		}
	}
}

// TestTargets: functions that are targets, and nothing that only speaks of them.
func TestTargets(t *testing.T) {
	got := targets("package p\n\nfunc FuzzA(f *testing.F) {}\n// func FuzzB(\n\tfunc FuzzC(\nfunc FuzzD2(f *testing.F) {}\nfunc TestFuzz(t *testing.T) {}\n")
	if want := []string{"FuzzA", "FuzzD2"}; !slices.Equal(got, want) {
		t.Errorf("targets %q, want %q", got, want)
	}
}
