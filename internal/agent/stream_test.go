package agent

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// TestReattachOfLiar: what an agent says of the input that its program was given is checked.
func TestReattachOfLiar(t *testing.T) {
	for name, c := range map[string]struct {
		answer wire.Reattached
		ok     bool
	}{
		"all":           {wire.Reattached{Input: 10, Ends: 1}, true},
		"some":          {wire.Reattached{Input: 4}, true},
		"closed":        {wire.Reattached{Input: 4, Closed: true}, true},
		"more ends":     {wire.Reattached{Input: 10, Ends: 100}, true},
		"too much":      {wire.Reattached{Input: 11}, false},
		"not kept":      {wire.Reattached{Input: 1}, false},
		"negative":      {wire.Reattached{Input: -1}, false},
		"smallest":      {wire.Reattached{Input: math.MinInt64}, false},
		"largest":       {wire.Reattached{Input: math.MaxInt64}, false},
		"negative ends": {wire.Reattached{Input: 10, Ends: math.MinInt}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client := liar(t, frames(func(w *wire.Writer) { _ = w.JSON(wire.KindStarted, c.answer) }))
			st := &Stream{execID: "x", changed: make(chan struct{}), sent: 10, kept: []byte("12345678"), ends: 1}
			err := st.Reattach(t.Context(), client)
			if c.ok != (err == nil) {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			if _, err := st.Recv(); err == nil {
				t.Error("there was output")
			}
			_ = st.Close()
		})
	}
}

// TestSuspendRefused: an agent that does not close its connections for a save does not have calls repeated without end.
func TestSuspendRefused(t *testing.T) {
	refuses := frames(func(w *wire.Writer) { _ = w.JSON(wire.KindFail, api.Errorf(api.CodeInternal, "no")) })
	agrees := frames(func(w *wire.Writer) { _ = w.JSON(wire.KindReply, wire.Empty{}) })
	for name, answer := range map[string][]byte{"refuses": refuses, "agrees": agrees, "says nothing": nil} {
		client := liar(t, answer)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := client.Suspend(ctx, true); err == nil {
			t.Errorf("%s: it is closed", name)
		}
		cancel()
		if _, err := client.Exec(t.Context(), Start{ExecID: "x", Argv: []string{"a"}}); err == nil || errors.Is(err, ErrSaving) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
