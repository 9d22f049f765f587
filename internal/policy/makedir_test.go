package policy_test

import (
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// lacking is a directory below which something is missing.
func lacking(real, missing string, owner int) policy.DirFact {
	f := dir(real, owner)
	f.Exists, f.Missing = false, missing
	return f
}

func TestMissingDirectories(t *testing.T) {
	grant := mustParse(t, "mounts: [{root: /data, write: true}]")
	all := mustParse(t, "mounts: [{root: /, write: true}]")
	reading := mustParse(t, "mounts: [{root: /data}]")
	gone := mustParse(t, "mounts: [{root: /data/new, write: true}]")
	for name, c := range map[string]struct {
		path     string
		fact     policy.DirFact
		readOnly bool
		caller   policy.Caller
		rules    rules.Rules
		w        want // the zero value is granted
	}{
		"below a grant":                 {"/data/new/x", lacking("/data", "new/x", 0), false, tenant, grant, want{}},
		"below / as a grant":            {"/new", lacking("/", "new", 0), false, tenant, all, want{}},
		"to read":                       {"/data/new", lacking("/data", "new", 0), true, tenant, grant, want{code: api.CodeInvalid, says: "does not exist"}},
		"a grant to read":               {"/data/new", lacking("/data", "new", 0), false, tenant, reading, want{code: api.CodeDenied, rule: "mounts", says: "write: true"}},
		"beside the grant":              {"/datanew", lacking("/", "datanew", 0), false, tenant, grant, want{code: api.CodeDenied, rule: "mounts", says: "none of the directories"}},
		"no grant at all":               {"/data/new", lacking("/data", "new", 0), false, tenant, rules.Rules{}, want{code: api.CodeDenied, rule: "mounts", says: "no directory of this host"}},
		"a root that does not exist":    {"/data/new/x", lacking("/data", "new/x", 0), false, tenant, gone, want{code: api.CodeDenied, rule: "mounts"}},
		"by a symlink out of the grant": {"/data/out/new", lacking("/srv/out", "new", 0), false, tenant, grant, want{code: api.CodeDenied, rule: "mounts"}},
		"below a file":                  {"/data/file/new", policy.DirFact{Real: "/data/file", Missing: "new"}, false, root, grant, want{code: api.CodeInvalid, says: "not a directory"}},
		"in a blocked place":            {"/etc/new", lacking("/etc", "new", 0), false, root, all, want{code: api.CodeDenied, rule: "blocked_path:/etc"}},
		"that would be blocked":         {"/data/new/.ssh", lacking("/data", "new/.ssh", 0), false, root, all, want{code: api.CodeDenied, rule: "blocked_path:.ssh"}},
		"the operator's own":            {"/home/alice/new", lacking("/home/alice", "new", 1000), false, operator, rules.Rules{}, want{}},
		"another's":                     {"/home/bob/x/new", lacking("/home/bob/x", "new", 1001), false, operator, rules.Rules{}, want{code: api.CodeDenied, rule: "mounts"}},
		"root beside the system's own":  {"/new", lacking("/", "new", 0), false, root, rules.Rules{}, want{code: api.CodeDenied, rule: "mounts"}},
		"root in a home of nobody":      {"/home/carol/x", lacking("/home", "carol/x", 0), false, root, rules.Rules{}, want{code: api.CodeDenied, rule: "mounts"}},
		"cannot be looked at":           {"/data/new", policy.DirFact{}, false, root, grant, want{code: api.CodeInvalid, says: "cannot be read"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			f.Dirs[c.path] = c.fact
			if f.Dirs["/"] = dir("/", 0); c.path == "/" {
				t.Fatal("the root is there")
			}
			err := decideDir(t, c.path, c.readOnly, f, c.caller, c.rules)
			if c.w.code != "" {
				c.w.check(t, err)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	f := facts()
	f.Dirs["/data/new/x"] = lacking("/data", "new/x", 0)
	for _, c := range []policy.Caller{policy.UnixCaller(4242, 1000), tenant} {
		p, err := policy.Decide(policy.Request{Spec: mount("/data/new/x", false), Facts: f}, c, grant)
		if err != nil {
			t.Fatal(err)
		}
		owner := max(c.UID, 0) // without an id of its own, the one of the directory above
		if got := p.Mounts()[0]; got.Real != "/data/new/x" || got.Missing != "new/x" || got.OwnerUID != owner || got.Dev != 7 || got.Ino != 9 {
			t.Errorf("granted %+v", got)
		}
	}
}

func TestPathsOfWindows(t *testing.T) {
	for _, p := range []string{`C:\x`, "c:/x", "C:", `\\srv\share`, `\\?\C:\x`} {
		for _, c := range []policy.Caller{operator, tenant} {
			_, err := policy.Decide(policy.Request{Spec: mount(p, true), Facts: facts()}, c, rules.Rules{})
			want{code: api.CodeInvalid, field: "mounts[0].source", says: "Windows"}.check(t, err)
			_, err = policy.Decide(policy.Request{Spec: api.SandboxSpec{Workspace: &api.Workspace{Dir: p}}, Facts: facts()}, c, rules.Rules{})
			want{code: api.CodeInvalid, field: "workspace.dir", says: "Windows"}.check(t, err)
		}
		spec := mount("/data", true)
		spec.Mounts[0].Target = p
		_, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, root, rules.Rules{})
		want{code: api.CodeInvalid, field: "mounts[0].target", says: "Windows"}.check(t, err)
	}
}
