//go:build linux

package sandbox

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// closing is an instance that notes that it was closed.
type closing struct {
	engine.Instance
	closed int
}

func (c *closing) Close(context.Context) error { c.closed++; return nil }

// A sandbox that has not kept a deadline is ended by its engine while it runs, or is
// paused, and the reason is kept.
func TestCondemnedSandbox(t *testing.T) {
	for state, ends := range map[api.State]bool{
		api.StateRunning: true, api.StatePaused: true, api.StateStopped: false, api.StateStopping: false, api.StateLost: false, api.StateCreating: false,
	} {
		inst := &closing{}
		s := &live{id: "x", inst: inst, info: api.Sandbox{State: state}}
		m := &Manager{ctx: t.Context(), log: slog.New(slog.DiscardHandler)}
		m.condemn(s, "it was late", nil)
		if (inst.closed == 1) != ends || (s.condemned == "it was late") != ends || inst.closed > 1 {
			t.Errorf("%s: closed %d times, condemned for %q", state, inst.closed, s.condemned)
		}
		s = &live{id: "x", info: api.Sandbox{State: state}}
		m.condemn(s, "it was late", nil)
		if s.condemned != "" {
			t.Errorf("%s without an instance: condemned for %q", state, s.condemned)
		}
	}
}

// What may still be written is the bound without what was counted and what the filesystem
// has lost since.
