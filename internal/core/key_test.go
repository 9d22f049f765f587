//go:build linux

package core_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/engine/fake"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func errorOf(t *testing.T, err error) *api.Error {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *cloche.Error", err)
	}
	return e
}

// caller is the caller of a new key.
func (h *fixture) caller(t *testing.T, spec api.KeySpec) (core.Caller, api.NewKey) {
	t.Helper()
	k, err := h.CreateKey(t.Context(), operator, spec)
	if err != nil {
		t.Fatal(err)
	}
	c, live, err := h.Authenticate(k.Secret)
	if err != nil || live.Err() != nil || c.Operator {
		t.Fatalf("%+v, %v", c, err)
	}
	return c, k
}

func TestTenantsAreApart(t *testing.T) {
	h := newFixture(t)
	red, _ := h.caller(t, api.KeySpec{Tenant: "red"})
	blue, _ := h.caller(t, api.KeySpec{Tenant: "blue"})
	mine, err := h.Create(t.Context(), red, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := h.Create(t.Context(), blue, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatalf("the name is not free for another tenant: %v", err)
	}
	for c, own := range map[*core.Caller]api.Sandbox{&red: mine, &blue: theirs} {
		got, err := h.Get(t.Context(), *c, "box")
		if err != nil || got.ID != own.ID {
			t.Errorf("%s: box is %s, %v", c.Tenant, got.ID, err)
		}
		if l, err := h.List(t.Context(), *c, api.ListOptions{}); err != nil || len(l.Sandboxes) != 1 || l.Sandboxes[0].ID != own.ID {
			t.Errorf("%s sees %+v, %v", c.Tenant, l, err)
		}
		if st := h.Status(t.Context(), *c); st.Sandboxes != 1 {
			t.Errorf("%s is told of %d sandboxes", c.Tenant, st.Sandboxes)
		}
	}
	// A foreign id and one that never was are the same to it.
	const never = "sb-0000000000000000"
	ls := api.ExecRequest{Argv: []string{"ls"}}
	for verb, do := range map[string]func(id string) error{
		"get":  func(id string) error { _, err := h.Get(t.Context(), red, id); return err },
		"exec": func(id string) error { _, err := h.Exec(t.Context(), red, id, ls); return err },
		"stop": func(id string) error { _, err := h.Stop(t.Context(), red, id, nil); return err },
		"kill": func(id string) error { _, err := h.Kill(t.Context(), red, id); return err },
		"rm":   func(id string) error { return h.Remove(t.Context(), red, id) },
		"read": func(id string) error {
			_, _, err := h.ReadFile(t.Context(), red, id, api.FilePlace{Path: "/x"}, 0, 0)
			return err
		},
		"start": func(id string) error {
			_, err := h.StartProcess(t.Context(), red, id, api.ProcessSpec{ExecRequest: ls})
			return err
		},
		"snapshot": func(id string) error {
			_, err := h.CreateSnapshot(t.Context(), red, id, api.SnapshotRequest{})
			return err
		},
		"open port":  func(id string) error { _, err := h.OpenPort(t.Context(), red, id, api.PortSpec{Port: 80}); return err },
		"open ports": func(id string) error { _, err := h.OpenPorts(t.Context(), red, id); return err },
		"close port": func(id string) error { return h.ClosePort(t.Context(), red, id, 80) },
		"port":       func(id string) error { _, err := h.DialPort(t.Context(), red, id, 80); return err },
		"explain": func(id string) error {
			_, err := h.ExplainPolicy(t.Context(), red, api.PolicyQuestion{Verb: "exec", Sandbox: id})
			return err
		},
	} {
		foreign, missing := errorOf(t, do(theirs.ID)), errorOf(t, do(never))
		if foreign.Code != api.CodeNotFound || len(foreign.Message) != len(missing.Message)+len(theirs.ID)-len(never) || foreign.Hint != missing.Hint || foreign.Rule != missing.Rule {
			t.Errorf("%s: a foreign id %+v, a missing one %+v", verb, foreign, missing)
		}
	}
	if _, err := h.Get(t.Context(), blue, theirs.ID); err != nil {
		t.Errorf("what another tried did something: %v", err)
	}
}

func TestAKeyIsKeptToItsScope(t *testing.T) {
	h := newFixture(t)
	c, k := h.caller(t, api.KeySpec{Tenant: "red", Verbs: []string{"run"}, Profiles: []string{"default"}})
	if err := h.Admit(t.Context(), c, policy.VerbRun); err != nil {
		t.Error(err)
	}
	if e := errorOf(t, h.Admit(t.Context(), c, policy.VerbCreate)); e.Code != api.CodeDenied || e.Rule != "key:"+k.Key.ID {
		t.Errorf("%+v", e)
	}
	// What a run leads to needs no verb of its own: nothing is left of it.
	res, err := h.Run(t.Context(), c, api.RunRequest{Spec: api.SandboxSpec{Profile: "default"}, Exec: api.ExecRequest{Argv: []string{"/bin/sh", "-c", "true"}, Cwd: "/"}})
	if err != nil {
		t.Fatalf("%+v, %v", res, err)
	}
	if l, err := h.List(t.Context(), operator, api.ListOptions{}); err != nil || len(l.Sandboxes) != 0 {
		t.Errorf("left: %+v, %v", l, err)
	}
	_, err = h.Run(t.Context(), c, api.RunRequest{Exec: api.ExecRequest{Argv: []string{"true"}}})
	if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != "key:"+k.Key.ID {
		t.Errorf("another profile: %+v", e)
	}
	box, err := h.Create(t.Context(), core.Caller{Tenant: "red", UID: -1}, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Exec(t.Context(), c, box.ID, api.ExecRequest{Argv: []string{"true"}})
	if e := errorOf(t, err); e.Rule != "key:"+k.Key.ID {
		t.Errorf("a sandbox of another profile: %+v", e)
	}
}

func TestOnlyTheOperatorHasKeys(t *testing.T) {
	h := newFixture(t)
	c, k := h.caller(t, api.KeySpec{Tenant: "local"})
	for _, who := range []core.Caller{c, core.TCPCaller(), core.UnixCaller(4242, 1000)} {
		_, err1 := h.CreateKey(t.Context(), who, api.KeySpec{Tenant: "red"})
		_, err2 := h.Keys(t.Context(), who)
		_, err3 := h.RevokeKey(t.Context(), who, k.Key.ID)
		for _, err := range []error{err1, err2, err3} {
			if e := errorOf(t, err); e.Code != api.CodeDenied || e.Rule != "operator_only" {
				t.Errorf("%s: %+v", who.Tenant, e)
			}
		}
	}
	if l, err := h.Keys(t.Context(), operator); err != nil || len(l.Keys) != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := h.RevokeKey(t.Context(), operator, k.Key.ID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := h.Authenticate(k.Secret); !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("%v", err)
	}
	h.holdsNot(t, k.Secret[21:])
}

func TestRulesChangeWhileItRuns(t *testing.T) {
	h := newFixture(t)
	if err := h.UseRules(t.Context(), rules.Rules{Engine: fake.Name, MinTier: api.TierNone, Enabled: new(false)}, "abc"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{}, nil); !errors.Is(err, api.ErrDisabled) {
		t.Errorf("%v", err)
	}
	a, err := h.ExplainPolicy(t.Context(), operator, api.PolicyQuestion{})
	if err != nil || a.Allowed || a.Refusal.Code != api.CodeDisabled {
		t.Errorf("%+v, %v", a, err)
	}
	h.RejectRules(t.Context(), "def", errors.New("line 1: no"))
	if _, err := h.Create(t.Context(), operator, api.SandboxSpec{}, nil); !errors.Is(err, api.ErrDisabled) {
		t.Errorf("after a rejection: %v", err)
	}
	h.holds(t, `"reload_policy"`, `"abc"`, `"refused"`, "line 1: no")
}

func TestExplainAsAnother(t *testing.T) {
	h := newFixture(t)
	red, k := h.caller(t, api.KeySpec{Tenant: "red", Profiles: []string{"default"}})
	for _, q := range []api.PolicyQuestion{{}, {Tenant: "red"}, {Key: k.Key.ID}} {
		a, err := h.ExplainPolicy(t.Context(), red, q)
		if err != nil || a.Allowed || a.Refusal.Rule != "key:"+k.Key.ID || a.Tenant != "red" {
			t.Errorf("%+v: %+v, %v", q, a, err)
		}
	}
	for _, q := range []api.PolicyQuestion{{Tenant: "blue"}, {Key: "key-other"}, {Tenant: "local"}} {
		if _, err := h.ExplainPolicy(t.Context(), red, q); !errors.Is(err, api.ErrDenied) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	a, err := h.ExplainPolicy(t.Context(), operator, api.PolicyQuestion{Key: k.Key.ID, Spec: api.SandboxSpec{Profile: "default"}})
	if err != nil || !a.Allowed || a.Tenant != "red" || a.Operator {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := h.ExplainPolicy(t.Context(), operator, api.PolicyQuestion{Key: "key-none"}); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("%v", err)
	}
	box, err := h.Create(t.Context(), core.Caller{Tenant: "red", UID: -1}, api.SandboxSpec{Name: "box"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"box", box.ID} {
		a, err := h.ExplainPolicy(t.Context(), operator, api.PolicyQuestion{Key: k.Key.ID, Verb: "read_file", Sandbox: ref})
		if err != nil || a.Allowed || a.Refusal.Rule != "key:"+k.Key.ID {
			t.Errorf("%s: %+v, %v", ref, a, err)
		}
	}
	if l, err := h.List(t.Context(), operator, api.ListOptions{}); err != nil || len(l.Sandboxes) != 1 {
		t.Errorf("to ask made something: %+v, %v", l, err)
	}
}

// audit is what is on record.
func (h *fixture) audit(t *testing.T) string {
	t.Helper()
	return h.files(t, func(p string) bool {
		return strings.HasPrefix(filepath.Base(p), "audit") || strings.Contains(p, "/audit/")
	})
}

// files are the contents of the files of the fixture.
func (h *fixture) files(t *testing.T, want func(path string) bool) string {
	t.Helper()
	var all strings.Builder
	err := filepath.WalkDir(h.dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || !want(p) {
			return err
		}
		data, err := os.ReadFile(p)
		all.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all.String()
}

func (h *fixture) holds(t *testing.T, texts ...string) {
	t.Helper()
	have := h.audit(t)
	for _, s := range texts {
		if !strings.Contains(have, s) {
			t.Errorf("the audit log does not hold %s: %s", s, have)
		}
	}
}

// holdsNot wants a secret to be in no file at all.
func (h *fixture) holdsNot(t *testing.T, secret string) {
	t.Helper()
	have := h.files(t, func(string) bool { return true })
	if !strings.Contains(have, "create_key") {
		t.Error("it was not looked at the right files")
	}
	if strings.Contains(have, secret) {
		t.Error("a file of the home holds the key")
	}
}

func (h *fixture) count(t *testing.T, text string) int {
	t.Helper()
	return strings.Count(h.audit(t), text)
}
