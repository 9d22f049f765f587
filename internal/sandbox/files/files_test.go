package files

import (
	"context"
	"errors"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// writes is a sandbox that counts the writes of files.
type writes struct {
	active int
	cut    bool
}

func (*writes) Agent(context.Context) (*agent.Client, error) { return nil, nil }
func (*writes) Info() api.Sandbox                            { return api.Sandbox{} }
func (*writes) Use() func()                                  { return func() {} }
func (*writes) Explain(err error) error                      { return err }
func (*writes) Dirs() []workspace.Attached                   { return nil }
func (*writes) Ended() <-chan struct{}                       { return nil }

func (w *writes) Writing() func(error) {
	w.active++
	return func(err error) {
		w.active--
		w.cut = w.cut || err != nil
	}
}

// A sandbox knows of a write that goes on, and of one that failed. A read leaves nothing.
func TestSandboxKnowsOfWrites(t *testing.T) {
	failed := api.Errorf(api.CodeNotFound, "no directory")
	for name, tt := range map[string]struct {
		verb   policy.Verb
		err    error
		during int
		cut    bool
	}{
		"write":        {policy.VerbWriteFile, nil, 1, false},
		"failed write": {policy.VerbWriteFile, failed, 1, true},
		"read":         {policy.VerbReadFile, nil, 0, false},
		"failed read":  {policy.VerbReadFile, failed, 0, false},
	} {
		w := &writes{}
		f := New(func(context.Context, policy.Caller, policy.Verb, string) (Sandbox, error) { return w, nil })
		_, err := onAgent(t.Context(), f, policy.Caller{}, tt.verb, "x", func(context.Context, *agent.Client, api.Sandbox) (none, error) {
			if w.active != tt.during {
				t.Errorf("%s: %d writes while it goes on, want %d", name, w.active, tt.during)
			}
			return none{}, tt.err
		})
		if !errors.Is(err, tt.err) || w.active != 0 || w.cut != tt.cut {
			t.Errorf("%s: %v, %d writes afterwards, cut %t, want %t", name, err, w.active, w.cut, tt.cut)
		}
	}
}
