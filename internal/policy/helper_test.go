package policy_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

var (
	operator = policy.InProcessCaller(1000)
	root     = policy.UnixCaller(0, 0)
	tenant   = policy.TCPCaller()
)

func allEnforced() map[string]api.Enforcement {
	return map[string]api.Enforcement{
		"cpus": {OK: true}, "memory_bytes": {OK: true}, "pids": {OK: true}, "disk_bytes": {OK: true}, "egress": {OK: true},
	}
}

func gvisor() api.EngineReport {
	return api.EngineReport{Name: "gvisor", Tier: api.TierGVisor, Usable: true, Enforces: allEnforced(), SharesHostFS: true}
}

func dir(real string, owner int) policy.DirFact {
	return policy.DirFact{Exists: true, Real: real, Dir: true, OwnerUID: owner, Dev: 7, Ino: 9}
}

// facts are a machine with one of everything.
func facts() policy.Facts {
	return policy.Facts{
		Engines:  []api.EngineReport{gvisor()},
		Home:     "/home/alice/.local/share/cloche",
		UserHome: "/home/alice",
		Dirs: map[string]policy.DirFact{
			"/home/alice/project": dir("/home/alice/project", 1000),
			"/data":               dir("/data", 0),
			"/data/in":            dir("/data/in", 0),
			"/data/link":          dir("/etc/ssl", 0),
			"/data/out":           dir("/srv/out", 0),
			"/data/file":          {Exists: true, Real: "/data/file", OwnerUID: 0},
			"/datax":              dir("/datax", 0),
			"/home/alice/etc":     dir("/etc", 0),
			"/home/alice/keys":    dir("/home/alice/.ssh", 1000),
			"/srv/link":           dir("/srv/real", 0),
			"/srv/real/sub":       dir("/srv/real/sub", 0),
		},
	}
}

func decide(t *testing.T, spec api.SandboxSpec, c policy.Caller, r rules.Rules) policy.Permit {
	t.Helper()
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, c, r)
	if err != nil {
		t.Fatalf("refused: %v", err)
	}
	if !p.Valid() {
		t.Fatal("a granted Permit is not valid")
	}
	return p
}

// want is what a refusal must be; empty parts are not compared.
type want struct {
	code  api.Code
	field string
	rule  string
	// says is a part of message or hint.
	says string
}

func (w want) check(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		t.Fatalf("got %v, want a *cloche.Error of code %s", err, w.code)
	}
	if e.Code != w.code || w.field != "" && e.Field != w.field || w.rule != "" && e.Rule != w.rule {
		t.Errorf("got code %s, field %q, rule %q; want %s, %q, %q: %v", e.Code, e.Field, e.Rule, w.code, w.field, w.rule, e)
	}
	if !strings.Contains(e.Error(), w.says) {
		t.Errorf("message %q does not say %q", e.Error(), w.says)
	}
	if e.Hint == "" && e.Code != api.CodeInternal {
		t.Errorf("no hint says what would be right: %v", e)
	}
	if e.Code == api.CodeDenied && e.Rule == "" {
		t.Errorf("a denial names no rule: %v", e)
	}
}

func mustParse(t *testing.T, text string) rules.Rules {
	t.Helper()
	r, err := rules.ParseRules([]byte(text))
	if err != nil {
		t.Fatalf("ParseRules: %v", err)
	}
	return r
}
