package sandbox

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/sandbox/undo"
)

var allStates = api.States()

// The whole machine, as a picture: a row may go to the columns marked x.
func TestTransitions(t *testing.T) {
	const table = `
	          creating running paused suspended stopping stopped lost failed deleting
	creating     .        x      .       .        .       .      .     .       x
	running      .        .      x       .        x       .      x     .       x
	paused       .        x      .       x        x       .      x     .       x
	suspended    .        x      .       .        x       .      .     .       x
	stopping     .        .      .       .        .       x      .     .       x
	stopped      .        .      .       .        .       .      .     .       x
	lost         .        .      .       .        .       .      .     .       x
	failed       .        .      .       .        x       .      .     .       x
	deleting     .        .      .       .        .       .      .     .       .`
	rows := strings.Split(strings.TrimSpace(table), "\n")[1:]
	if len(rows) != len(allStates) {
		t.Fatal("a state is missing")
	}
	for _, row := range rows {
		f := strings.Fields(row)
		for i, mark := range f[1:] {
			from, to := api.State(f[0]), allStates[i]
			s := &live{info: api.Sandbox{Name: "n", State: from}}
			err := s.move(to, "why")
			switch {
			case (mark == "x") != (err == nil):
				t.Errorf("%s to %s: %v", from, to, err)
			case err == nil && (s.info.State != to || s.info.Reason != "why"):
				t.Errorf("%s to %s became %s", from, to, s.info.State)
			case err != nil && (api.CodeOf(err) != api.CodeState || s.info.State != from):
				t.Errorf("%s to %s: %v, and it is %s", from, to, err, s.info.State)
			}
		}
	}
}

func TestUndoRunsInReverseAndKeepsWhatFailed(t *testing.T) {
	var done []string
	fail := true
	var u undo.Stack
	for _, name := range []string{"a", "b", "c"} {
		u.Push(name, func(ctx context.Context) error {
			if ctx.Err() != nil {
				t.Error("the caller's cancellation reached an undo")
			}
			if name != "c" && fail {
				return errors.New("no")
			}
			done = append(done, name)
			return nil
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.Run(ctx); err == nil || !strings.Contains(err.Error(), "undo b: no\nundo a: no") {
		t.Errorf("run: %v, want the names of the steps that failed", err)
	}
	fail = false
	if err := u.Run(ctx); err != nil || !slices.Equal(done, []string{"c", "b", "a"}) || len(u) != 0 {
		t.Errorf("undone %v, %v, left %d", done, err, len(u))
	}
}
