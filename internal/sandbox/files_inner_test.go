//go:build linux

package sandbox

import (
	"context"
	"errors"
	"os"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// A write that goes on, and one that failed, are known to the end of the sandbox, which
// removes what they left. A read leaves nothing.
func TestWritesThatAnEndCutsOff(t *testing.T) {
	c, _ := dialed(t)
	caller := policy.InProcessCaller(os.Geteuid())
	failed := api.Errorf(api.CodeNotFound, "no directory")
	for name, tt := range map[string]struct {
		verb   policy.Verb
		err    error
		during int32
		cut    bool
	}{
		"write":        {policy.VerbWriteFile, nil, 1, false},
		"failed write": {policy.VerbWriteFile, failed, 1, true},
		"read":         {policy.VerbReadFile, nil, 0, false},
		"failed read":  {policy.VerbReadFile, failed, 0, false},
	} {
		s := &live{id: "x", tenant: caller.Tenant, info: api.Sandbox{State: api.StateRunning}, agent: c, ended: make(chan struct{})}
		m := &Manager{byID: map[string]*live{"x": s}}
		_, err := onAgent(t.Context(), m, caller, tt.verb, "x", func(context.Context, *agent.Client, api.Sandbox) (none, error) {
			if got := s.writes.Load(); got != tt.during {
				t.Errorf("%s: %d writes while it goes on, want %d", name, got, tt.during)
			}
			return none{}, tt.err
		})
		if !errors.Is(err, tt.err) || s.writes.Load() != 0 || s.cut.Load() != tt.cut {
			t.Errorf("%s: %v, %d writes afterwards, cut %t, want %t", name, err, s.writes.Load(), s.cut.Load(), tt.cut)
		}
	}
}
