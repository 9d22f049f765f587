//go:build linux

package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/cloche-dev/cloche/test/fixture"
)

// loops N waits until N loop devices have a file of the home.
func cmdLoops(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: loops N")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	s := state(ts)
	if !fixture.Poll(func() bool { return len(leftLoops(s)) == want }) {
		ts.Fatalf("want %d loop devices, have %q", want, leftLoops(s))
	}
}

// leftLoops are the loop devices that have a file of the home.
func leftLoops(s *fixture.Home) []string {
	var left []string
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range files {
		if data, err := os.ReadFile(f); err == nil && strings.HasPrefix(string(data), s.Dir+"/") {
			left = append(left, "loop device of "+strings.TrimSpace(string(data)))
		}
	}
	return left
}
