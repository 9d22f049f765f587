package sandbox

import (
	"errors"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

// A call under which the sandbox died says why it died.
func TestExplain(t *testing.T) {
	broken := api.Errorf(api.CodeUnavailable, "the connection broke")
	over := api.Errorf(api.CodeTooLarge, "the workspace is over its limit")
	died := make(chan struct{})
	close(died)
	for name, c := range map[string]struct {
		s        *live
		err      error
		code     api.Code
		terminal api.TerminalReason
		message  string
	}{
		"no error":            {&live{ended: died}, nil, "", "", ""},
		"an error of its own": {&live{ended: died}, api.Errorf(api.CodeNotFound, "no file"), api.CodeNotFound, "", "no file"},
		"lost":                {&live{ended: died, info: api.Sandbox{Name: "x"}, end: ending{reason: "its agent ended"}}, broken, api.CodeSandboxLost, api.EndedLost, "sandbox x ended during the call: its agent ended"},
		"out of memory":       {&live{ended: died, info: api.Sandbox{Name: "x"}, end: ending{reason: "memory", oom: true}}, broken, api.CodeSandboxLost, api.EndedOOM, "sandbox x ended during the call: memory"},
		"killed":              {&live{ended: died, info: api.Sandbox{Name: "x", TerminalReason: api.EndedKilled}, end: ending{reason: "the sandbox was ended"}}, broken, api.CodeSandboxLost, api.EndedKilled, "sandbox x ended during the call: the sandbox was ended"},
		"over its limit":      {&live{ended: died, excess: over, end: ending{reason: "limit"}}, broken, api.CodeTooLarge, "", "the workspace is over its limit"},
	} {
		got := c.s.explain(c.err)
		if c.err == nil {
			if got != nil {
				t.Errorf("%s: %v", name, got)
			}
			continue
		}
		e, ok := errors.AsType[*api.Error](got)
		if !ok || e.Code != c.code || e.TerminalReason != c.terminal || e.Message != c.message || !errors.Is(got, c.err) {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if over.Unwrap() != nil {
		t.Error("the error of one call is that of the next")
	}
}
