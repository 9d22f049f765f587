//go:build linux

package langbot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
)

// TestSessionWithoutRecordIsUndone: a session without a written record does not exist,
// and its sandbox is not left.
func TestSessionWithoutRecordIsUndone(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	d.must("box_create_session", p, obj{"session_id": "before"})
	if err := os.RemoveAll(d.opts.Dir); err != nil {
		t.Fatal(err)
	}
	if r := d.ask("box_create_session", p, obj{"session_id": "s"}); r.Message == "success" {
		t.Errorf("%+v", r)
	}
	d.core.mu.Lock()
	live := len(d.core.live)
	d.core.mu.Unlock()
	if got := d.ids(p); live != 1 || got != "before" {
		t.Errorf("%d sandboxes live, and the sessions are %q", live, got)
	}
}

// TestRecordsHoldNoEnvironment: what a client sends as the environment of a session, or as
// its command, is in no record.
func TestRecordsHoldNoEnvironment(t *testing.T) {
	d := newServer(t, nil)
	p := &placement{"inst-1", "ws-1", 1}
	const canary = "canary-of-the-environment"
	d.must("box_create_session", p, obj{"session_id": "s", "env": obj{"A": canary}, "cmd": "echo " + canary})
	d.must("box_exec", p, obj{"session_id": "t", "env": obj{"A": canary}, "cmd": "echo " + canary})
	records := 0
	err := filepath.WalkDir(d.opts.Dir, func(p string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(p)
		if records++; strings.Contains(string(data), canary) {
			t.Errorf("%s: %s", p, data)
		}
		return err
	})
	if err != nil || records < 2 {
		t.Errorf("%d records, %v", records, err)
	}
}

// TestSessionContinues: a session whose sandbox was paused or suspended is used again, and a persistent one whose sandbox
// has ended is started again. An error that may be gone at the next try takes neither the sandbox nor the session.
func TestSessionContinues(t *testing.T) {
	broken := api.Errorf(api.CodeUnavailable, "the disk is full")
	refused := api.Errorf(api.CodeState, "the memory is of another version").WithCause(engine.ErrMemoryRefused)
	encrypted := api.Errorf(api.CodeState, "the memory is encrypted with another key")
	for name, c := range map[string]struct {
		state        api.State
		transient    bool
		resume, fail error
		want         string // same, new, or the class of an error
	}{
		"paused":                                 {state: api.StatePaused, transient: true, want: "same"},
		"suspended":                              {state: api.StateSuspended, want: "same"},
		"a resume that fails":                    {state: api.StateSuspended, resume: broken, want: "BoxBackendUnavailableError: "},
		"a memory that can't be used":            {state: api.StateSuspended, resume: refused, want: "same"},
		"a memory without its key":               {state: api.StateSuspended, resume: encrypted, want: "Box"},
		"stopped":                                {state: api.StateStopped, want: "same"},
		"lost":                                   {state: api.StateLost, want: "same"},
		"a start that fails":                     {state: api.StateLost, fail: broken, want: "BoxBackendUnavailableError: "},
		"a sandbox that can't be started":        {state: api.StateLost, fail: refused, want: "new"},
		"lost, and the session isn't persistent": {state: api.StateLost, transient: true, want: "new"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newServer(t, nil)
			p := &placement{"inst-1", "ws-1", 1}
			spec := obj{"session_id": "s", "persistent": !c.transient}
			first := d.must("box_create_session", p, spec)["backend_session_id"].(string)
			d.core.becomes(first, c.state)
			d.core.resumeFails, d.core.startFails = c.resume, c.fail
			if c.want != "same" && c.want != "new" {
				d.refused(c.want, "box_create_session", p, spec)
				d.core.resumeFails, d.core.startFails = nil, nil
			}
			again := d.must("box_create_session", p, spec)["backend_session_id"]
			if (again == first) == (c.want == "new") {
				t.Errorf("the session is the sandbox %v, and was %v", again, first)
			}
		})
	}
}

// TestPersistentSuspends: a persistent session is suspended after the time of the configuration, if the engine can do that.
func TestPersistentSuspends(t *testing.T) {
	for name, c := range map[string]struct {
		config     string
		persistent bool
		refuse     error
		want       int64
	}{
		"by default":       {`{"session_ttl_sec":60}`, true, nil, 60_000},
		"after its time":   {`{"persistent":{"suspend_after_sec":5}}`, true, nil, 5_000},
		"never":            {`{"persistent":{"suspend_after_sec":0}}`, true, nil, 0},
		"not persistent":   {`{}`, false, nil, 0},
		"an engine can't":  {`{}`, true, &api.Error{Code: api.CodeUnsupported, Field: "auto_resume"}, 0},
		"an older refusal": {`{}`, true, &api.Error{Code: api.CodeUnsupported, Field: "on_expiry"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := newServer(t, func(o *Options) { o.Config = c.config })
			d.core.refuse = func(spec api.SandboxSpec) error {
				if spec.AutoResume {
					return c.refuse
				}
				return nil
			}
			ref := d.must("box_create_session", &placement{"inst-1", "ws-1", 1}, obj{"session_id": "s", "persistent": c.persistent})["backend_session_id"]
			got := d.core.live[ref.(string)]
			if suspends := c.want > 0; got.Limits.IdleMS != c.want || got.AutoResume != suspends || (got.OnExpiry == api.ExpirySuspend) != suspends {
				t.Errorf("%+v", got)
			}
		})
	}
}
