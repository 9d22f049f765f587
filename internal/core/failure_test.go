//go:build linux

package core_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func (h *fixture) errors(t *testing.T, c core.Caller, o api.ErrorOptions) []api.ErrorRecord {
	t.Helper()
	l, err := h.Errors(t.Context(), c, o)
	if err != nil {
		t.Fatal(err)
	}
	return l.Errors
}

// TestErrorsAreRemembered: of each stage one, as the caller got it, and no other
// tenant's.
func TestErrorsAreRemembered(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	ctx := core.WithRequestID(t.Context(), "rq-red")
	asked := api.Naming{Identity: &api.Identity{LauncherID: "1", QueryID: "q-7"}}
	if got := h.errors(t, red, api.ErrorOptions{}); len(got) != 0 {
		t.Errorf("before anything: %+v", got)
	}
	before := time.Now().Add(-time.Second)
	_, err := h.Create(ctx, red, api.SandboxSpec{Profile: "none-such", Naming: asked}, nil)
	build := errorOf(t, err)
	if _, err := h.Create(ctx, red, api.SandboxSpec{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	// A command's own failure is no error.
	if res, err := h.Exec(ctx, red, "box", api.ExecRequest{Argv: []string{"/bin/sh", "-c", "exit 3"}, Cwd: "/"}); err != nil || res.OK() {
		t.Fatalf("%+v, %v", res, err)
	}
	_, err = h.Exec(ctx, red, "box", api.ExecRequest{Argv: []string{"/none/" + secretValue}, Cwd: "/"})
	exec := errorOf(t, err)
	_, err = h.StartProcess(ctx, red, "elsewhere", api.ProcessSpec{ExecRequest: api.ExecRequest{Argv: []string{"true"}}})
	start := errorOf(t, err)
	if _, err := h.ExecStream(ctx, blue, "nothing", api.ExecRequest{Argv: []string{"true"}}); err == nil {
		t.Fatal("an exec in nothing")
	}
	got := h.errors(t, red, api.ErrorOptions{})
	want := []api.ErrorRecord{
		{Stage: api.StageExecution, Code: start.Code, Message: start.Error()},
		{Stage: api.StageExecution, Code: api.CodeCommandNotFound, Message: strings.ReplaceAll(exec.Error(), secretValue, "[secret]")},
		{Stage: api.StageBuild, Code: build.Code, Message: build.Error(), QueryID: "q-7"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d errors: %+v", len(got), got)
	}
	for i, w := range want {
		g := got[i]
		if g.Stage != w.Stage || g.Code != w.Code || g.Message != w.Message || g.QueryID != w.QueryID || g.RequestID != "rq-red" || g.Tenant != "red" {
			t.Errorf("%d: %+v, want %+v", i, g, w)
		}
		if g.Time.Location() != time.UTC || g.Time.Before(before) || strings.Contains(g.Message, secretValue) {
			t.Errorf("%d: %+v", i, g)
		}
	}
	if got[1].Sandbox == "" {
		t.Error("it does not say in which sandbox")
	}
	if n := h.Status(t.Context(), red).RecentErrors; n != 3 {
		t.Errorf("status tells of %d errors", n)
	}
	// A tenant does not see another's, and an error does not tell that they exist.
	for _, o := range []api.ErrorOptions{{}, {Tenant: "blue"}} {
		if l := h.errors(t, blue, o); len(l) != 1 || l[0].Tenant != "blue" {
			t.Errorf("blue, %+v: %+v", o, l)
		}
	}
	if l := h.errors(t, blue, api.ErrorOptions{Tenant: "red"}); len(l) != 0 {
		t.Errorf("blue sees red's: %+v", l)
	}
	if l := h.errors(t, operator, api.ErrorOptions{}); len(l) != 4 || l[0].Tenant != "blue" {
		t.Errorf("the operator: %+v", l)
	}
	if l := h.errors(t, operator, api.ErrorOptions{Tenant: "red", Limit: 1}); len(l) != 1 || l[0].Message != want[0].Message {
		t.Errorf("the operator, the newest of red: %+v", l)
	}
}

func TestOnlyTheNewestErrorsAreRemembered(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	const more = api.KeptErrors + 7
	for i := range more {
		naming := api.Naming{Identity: &api.Identity{QueryID: strconv.Itoa(i)}}
		_, _ = h.Exec(t.Context(), red, "nothing", api.ExecRequest{Argv: []string{"true"}, Naming: naming})
	}
	got := h.errors(t, red, api.ErrorOptions{Limit: 1000})
	if len(got) != api.KeptErrors || got[0].QueryID != strconv.Itoa(more-1) || got[len(got)-1].QueryID != "7" {
		t.Errorf("%d errors, %+v … %+v", len(got), got[0], got[len(got)-1])
	}
}

func TestErrorsOfQuotas(t *testing.T) {
	h := newFixture(t)
	sb, dir := h.measuredBox(t)
	if err := os.WriteFile(filepath.Join(dir, "g"), make([]byte, 1<<20+1), 0o600); err != nil {
		t.Fatal(err)
	}
	_, before := h.sh(t, "true")
	if err := os.Remove(filepath.Join(dir, "g")); err != nil {
		t.Fatal(err)
	}
	_, after := h.sh(t, "head -c 1048577 /dev/zero > "+dir+"/f")
	got := h.errors(t, operator, api.ErrorOptions{})
	if len(got) != 2 || got[0].Stage != api.StageQuotaAfter || got[1].Stage != api.StageQuotaBefore ||
		got[0].Message != errorOf(t, after).Error() || got[1].Message != errorOf(t, before).Error() || got[0].Sandbox != sb.ID || got[0].Code != api.CodeQuota {
		t.Errorf("%+v", got)
	}
}

// TestWhyNotAvailable is the daemon's half of the table; the client has the other.
// What cannot make sandboxes still lists those that there are.
func TestWhyNotAvailable(t *testing.T) {
	down := fake.Faults{Problems: []api.Problem{{What: "the imaginary kernel is switched off"}}}
	for _, tc := range []struct {
		name   string
		rules  rules.Rules
		faults fake.Faults
		reason api.StatusReason
		says   string
	}{
		{"it can be had", rules.Rules{Engine: fake.Name, MinTier: api.TierNone}, fake.Faults{}, "", ""},
		{"disabled", rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Enabled: new(false)}, fake.Faults{}, api.ReasonDisabled, "switched"},
		{"disabled and down", rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Enabled: new(false)}, down, api.ReasonDisabled, "switched"},
		{"the named engine is down", rules.Rules{Engine: fake.Name, MinTier: api.TierNone}, down, api.ReasonEngineDown, "engine fake is not usable: the imaginary kernel"},
		{"none is there", rules.Rules{}, fake.Faults{}, api.ReasonNoEngine, "no engine is usable: fake"},
	} {
		h := newFixture(t)
		h.machine.SetFaults(tc.faults)
		if err := h.UseRules(t.Context(), tc.rules, "x"); err != nil {
			t.Fatal(err)
		}
		st := h.Status(t.Context(), operator)
		if st.Reason != tc.reason || !strings.Contains(st.Message, tc.says) || st.Available != (tc.reason == "") || (st.Message == "") != st.Available || st.Profile != api.DefaultProfile {
			t.Errorf("%s: %+v", tc.name, st)
		}
		if l, err := h.List(t.Context(), operator, api.ListOptions{}); err != nil || len(l.Sandboxes) != 0 {
			t.Errorf("%s: the list is %+v, %v", tc.name, l, err)
		}
	}
}

// TestOutputForAModel is cut in the middle, and says so.
func TestOutputForAModel(t *testing.T) {
	h := newFixture(t)
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{Name: "box"}, nil); err != nil {
		t.Fatal(err)
	}
	req := api.ExecRequest{ExecID: "one", Argv: []string{"/bin/sh", "-c", "printf %04001d 0; echo oops >&2"}, Cwd: "/", MaxOutputChars: new(int64(api.DefaultOutputChars))}
	res, err := h.Exec(t.Context(), operator, "box", req)
	if err != nil || len(res.Stdout) != 4000 || !strings.Contains(string(res.Stdout), "\n\n... [38 characters truncated] ...\n\n") ||
		!res.StdoutTruncated || res.StderrTruncated || !res.Truncated || string(res.Stderr) != "oops\n" || res.StdoutInfo.Kept != 4001 {
		t.Errorf("%v: %d bytes, %+v", err, len(res.Stdout), res)
	}
	// Asked for again with another bound it is the same exec.
	req.MaxOutputChars = nil
	if res, err := h.Exec(t.Context(), operator, "box", req); err != nil || len(res.Stdout) != 4001 || res.Truncated {
		t.Errorf("all of it: %v, %d bytes", err, len(res.Stdout))
	}
	run, err := h.Run(t.Context(), operator, api.RunRequest{Exec: api.ExecRequest{Argv: []string{"/bin/echo", "abc"}, Cwd: "/", MaxOutputChars: new(int64(0))}})
	if err != nil || len(run.Result.Stdout) != 0 || !run.Result.StdoutTruncated {
		t.Errorf("a run: %v, %+v", err, run.Result)
	}
	bad := func(what string, n int64, do func(api.ExecRequest) error) {
		t.Helper()
		err := do(api.ExecRequest{Argv: []string{"true"}, Cwd: "/", MaxOutputChars: &n})
		if e := errorOf(t, err); e.Code != api.CodeInvalid || e.Field != "max_output_chars" {
			t.Errorf("%s: %+v", what, e)
		}
	}
	exec := func(req api.ExecRequest) error { _, err := h.Exec(t.Context(), operator, "box", req); return err }
	bad("less than nothing", -1, exec)
	bad("too much", api.MaxOutputChars+1, exec)
	bad("a stream", 5, func(req api.ExecRequest) error {
		_, err := h.ExecStream(t.Context(), operator, "box", req)
		return err
	})
	bad("a streamed run", 5, func(req api.ExecRequest) error {
		_, _, err := h.RunStream(t.Context(), operator, api.RunRequest{Exec: req}, nil)
		return err
	})
	bad("a process", 5, func(req api.ExecRequest) error {
		_, err := h.StartProcess(t.Context(), operator, "box", api.ProcessSpec{ExecRequest: req})
		return err
	})
}
