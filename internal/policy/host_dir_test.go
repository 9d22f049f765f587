package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func mount(source string, readOnly bool) api.SandboxSpec {
	return api.SandboxSpec{Mounts: []api.Mount{{Source: source, Target: "/m", ReadOnly: readOnly}}}
}

// decideDir asks for one directory, first as a mount and then as the workspace,
// and demands the same answer.
func decideDir(t *testing.T, source string, readOnly bool, f policy.Facts, c policy.Caller, r rules.Rules) error {
	t.Helper()
	_, err := policy.Decide(policy.Request{Spec: mount(source, readOnly), Facts: f}, c, r)
	w := api.SandboxSpec{Workspace: &api.Workspace{Dir: source, ReadOnly: readOnly}}
	_, werr := policy.Decide(policy.Request{Spec: w, Facts: f}, c, r)
	if api.CodeOf(err) != api.CodeOf(werr) {
		t.Errorf("as a mount: %v; as the workspace: %v", err, werr)
	}
	return err
}

// everywhere claims that every path exists, is a directory and belongs to uid.
func everywhere(uid int, paths ...string) policy.Facts {
	f := facts()
	f.Dirs = map[string]policy.DirFact{}
	for _, p := range paths {
		f.Dirs[p] = dir(p, uid)
	}
	return f
}

func TestBlockedPathsAreForNobody(t *testing.T) {
	set := mustParse(t, "mounts: [{root: /, write: true}]\nblocked_paths: [/srv/secret]\n")
	for p, rule := range map[string]string{
		"/":                        "",
		"/proc":                    "blocked_path:/proc",
		"/proc/1/root":             "blocked_path:/proc",
		"/sys/fs/cgroup":           "blocked_path:/sys",
		"/dev/shm":                 "blocked_path:/dev",
		"/run":                     "blocked_path:/run",
		"/run/user/1000":           "blocked_path:/run",
		"/var/run/docker.sock":     "blocked_path:/var/run",
		"/boot":                    "blocked_path:/boot",
		"/etc":                     "blocked_path:/etc",
		"/etc/ssl/private":         "blocked_path:/etc",
		"/var":                     "",
		"/var/lib":                 "",
		"/var/lib/docker":          "blocked_path:/var/lib/docker",
		"/var/lib/docker/volumes":  "blocked_path:/var/lib/docker",
		"/var/lib/containerd/x":    "blocked_path:/var/lib/containerd",
		"/home":                    "blocked_path:/home",
		"/home/bob":                "blocked_path:home_directory",
		"/home/alice":              "",
		"/root":                    "blocked_path:/root",
		"/home/bob/.ssh":           "blocked_path:.ssh",
		"/home/bob/.ssh/keys":      "blocked_path:.ssh",
		"/srv/x/.aws":              "blocked_path:.aws",
		"/root/.config/gcloud/a":   "blocked_path:.config/gcloud",
		"/home/bob/.kube":          "blocked_path:.kube",
		"/home/bob/.docker":        "blocked_path:.docker",
		"/home/bob/.gnupg":         "blocked_path:.gnupg",
		"/home/alice/.local":       "blocked_path:cloche_home",
		"/home/alice/.local/share": "blocked_path:cloche_home",
		"/home/alice/.local/share/cloche/audit.log": "blocked_path:cloche_home",
		"/srv":          "blocked_paths[0]",
		"/srv/secret":   "blocked_paths[0]",
		"/srv/secret/x": "blocked_paths[0]",
	} {
		for who, c := range map[string]policy.Caller{"owner": operator, "root": root, "tenant": tenant} {
			for _, readOnly := range []bool{true, false} {
				err := decideDir(t, p, readOnly, everywhere(c.UID, p), c, set)
				if api.CodeOf(err) != api.CodeDenied {
					t.Errorf("%s may name %s (read-only %t): %v", who, p, readOnly, err)
					continue
				}
				want{code: api.CodeDenied, rule: rule}.check(t, err)
			}
		}
	}
}

// TestSocketsOfDaemonsAreBlocked: a directory with the socket of a daemon and all that
// hold it are blocked for everybody, and what is below it is not.
func TestSocketsOfDaemonsAreBlocked(t *testing.T) {
	set := mustParse(t, "mounts: [{root: /, write: true}]\n")
	for p, blocked := range map[string]bool{"/srv/a/run": true, "/srv/a": true, "/srv": true, "/srv/a/run/data": false, "/srv/b": false} {
		for who, c := range map[string]policy.Caller{"owner": operator, "root": root, "tenant": tenant} {
			f := everywhere(c.UID, p)
			f.SocketDirs = []string{"/srv/a/run"}
			err := decideDir(t, p, true, f, c, set)
			if blocked {
				want{code: api.CodeDenied, rule: "blocked_path:daemon_socket"}.check(t, err)
			} else if err != nil {
				t.Errorf("%s may not name %s: %v", who, p, err)
			}
		}
	}
}

func TestWhatIsBesideABlockedPathIsFree(t *testing.T) {
	set := mustParse(t, "blocked_paths: [/srv/secret]\n")
	for _, p := range []string{
		"/process", "/etcetera", "/runner", "/developer", "/home/alice/project", "/home/bob/x", "/root/work", "/data",
		"/srv/secrets", "/srv/secre", "/var/lib/dockers", "/home/alice/.sshd", "/home/alice/x.ssh", "/home/alice/.config/gcloudx",
		"/home/alice/.local/share/cloche2", "/tmp/a", "/opt", "/usr", "/homes",
	} {
		if err := decideDir(t, p, false, everywhere(1000, p), operator, set); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

func TestSymlinksAreJudgedByWhereTheyLead(t *testing.T) {
	granted := mustParse(t, "mounts: [{root: /data, write: true}, {root: /srv/link, write: true}]")
	for name, c := range map[string]struct {
		path   string
		caller policy.Caller
		rules  rules.Rules
		rule   string // empty is granted
	}{
		"to /etc, owner":           {"/home/alice/etc", operator, rules.Rules{}, "blocked_path:/etc"},
		"to /etc, root":            {"/home/alice/etc", root, rules.Rules{}, "blocked_path:/etc"},
		"to keys":                  {"/home/alice/keys", operator, rules.Rules{}, "blocked_path:.ssh"},
		"out of the grant, tenant": {"/data/out", tenant, granted, "mounts"},
		"to /etc, tenant":          {"/data/link", tenant, granted, "mounts"},
		"a granted symlink":        {"/srv/link", tenant, granted, ""},
		"not through another name": {"/srv/real/sub", tenant, granted, "mounts"},
		"inside the grant":         {"/data/in", tenant, granted, ""},
		"beside the grant":         {"/datax", tenant, granted, "mounts"},
	} {
		t.Run(name, func(t *testing.T) {
			f := facts()
			if c.path == "/srv/link" {
				f.Dirs["/srv/link"] = dir("/srv/real", 0)
			}
			err := decideDir(t, c.path, false, f, c.caller, c.rules)
			if c.rule == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want{code: api.CodeDenied, rule: c.rule}.check(t, err)
			if !c.caller.Operator {
				for _, leak := range []string{"/etc", "/srv/out"} {
					if strings.Contains(err.Error()+err.(*api.Error).Rule, leak) {
						t.Errorf("a tenant learns where a symlink leads: %v", err)
					}
				}
			}
		})
	}
}

// A path that the operator blocked and that is a symlink blocks its target.
func TestBlockedSymlinkBlocksItsTarget(t *testing.T) {
	set := mustParse(t, "blocked_paths: [/srv/link]")
	f := facts()
	f.Dirs["/srv/real/sub"] = dir("/srv/real/sub", 1000)
	want{code: api.CodeDenied, rule: "blocked_paths[0]"}.check(t, decideDir(t, "/srv/real/sub", true, f, operator, set))
}

func TestOwnershipAndGrants(t *testing.T) {
	ro := mustParse(t, "mounts: [{root: /data}]")
	rw := mustParse(t, "mounts: [{root: /data, write: true, tenants: [tcp]}]")
	other := policy.UnixCaller(4242, 1000)
	for name, c := range map[string]struct {
		path     string
		readOnly bool
		caller   policy.Caller
		rules    rules.Rules
		ok       bool
	}{
		"operator, own":              {"/home/alice/project", false, operator, rules.Rules{}, true},
		"operator, another's":        {"/data", true, operator, rules.Rules{}, false},
		"operator, granted to read":  {"/data", true, operator, ro, true},
		"operator, granted no write": {"/data", false, operator, ro, false},
		"root, another's":            {"/home/alice/project", false, root, rules.Rules{}, true},
		"uid unknown":                {"/data", true, policy.InProcessCaller(-1), rules.Rules{}, false},
		"tenant, nothing listed":     {"/data", true, tenant, rules.Rules{}, false},
		"tenant of the owner's uid":  {"/home/alice/project", true, policy.Caller{Tenant: "x", UID: 1000}, rules.Rules{}, false},
		"tenant of that uid, no write": {
			"/home/alice/project", false, policy.Caller{Tenant: "x", UID: 1000}, mustParse(t, "mounts: [{root: /home/alice/project}]"), false,
		},
		"tenant, to read":  {"/data/in", true, tenant, ro, true},
		"tenant, no write": {"/data/in", false, tenant, ro, false},
		"tenant, write":    {"/data", false, tenant, rw, true},
		"another tenant":   {"/data", true, other, rw, false},
		"a zero caller":    {"/data", true, policy.Caller{}, rw, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := decideDir(t, c.path, c.readOnly, facts(), c.caller, c.rules)
			if c.ok != (err == nil) {
				t.Fatalf("got %v, want granted %t", err, c.ok)
			}
			if err != nil {
				want{code: api.CodeDenied, rule: "mounts", says: "mounts: [{root: " + c.path}.check(t, err)
			}
		})
	}
}

// The rule in a hint does what it says.
func TestSmallestRuleWouldAllowIt(t *testing.T) {
	for _, readOnly := range []bool{true, false} {
		err := decideDir(t, "/data/in", readOnly, facts(), tenant, rules.Rules{})
		hint := err.(*api.Error).Hint
		_, rule, _ := strings.Cut(hint, "`")
		rule = strings.TrimSuffix(rule, "`")
		if err := decideDir(t, "/data/in", readOnly, facts(), tenant, mustParse(t, rule)); err != nil {
			t.Errorf("with %s: %v", rule, err)
		}
	}
	spec := api.SandboxSpec{Limits: api.Limits{MemoryBytes: 100 << 30}}
	_, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, tenant, rules.Rules{})
	_, rule, _ := strings.Cut(err.(*api.Error).Hint, "`")
	decide(t, spec, tenant, mustParse(t, strings.TrimSuffix(rule, "`")))
}

func TestPermitHoldsTheRealPaths(t *testing.T) {
	f := facts()
	f.Dirs["/home/alice/link"] = dir("/mnt/disk/project", 1000)
	spec := mount("/home/alice/link/", true)
	spec.Env = map[string]string{"A": "1"}
	spec.Workspace = &api.Workspace{Dir: "/home/alice/project", Path: "/srv/job"}
	p, err := policy.Decide(policy.Request{Spec: spec, Facts: f}, operator, rules.Rules{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Mounts(), []policy.HostDir{{
		Asked: "/home/alice/link", Real: "/mnt/disk/project", Target: "/m", ReadOnly: true, OwnerUID: 1000, Dev: 7, Ino: 9,
	}}; !slices.Equal(got, want) {
		t.Errorf("mounts %+v", got)
	}
	w, ok := p.WorkspaceDir()
	if !ok || w.Real != "/home/alice/project" || w.Target != "/srv/job" || w.ReadOnly {
		t.Errorf("workspace %+v %t", w, ok)
	}
	if s := p.Spec(); s.Mounts[0].Source != "/home/alice/link" || s.Workspace.Dir != "/home/alice/project" {
		t.Errorf("spec %+v", s)
	}
	// What Spec returns is the caller's to change.
	p.Spec().Mounts[0].Source = "/etc"
	p.Mounts()[0].Real = "/etc"
	p.Spec().Env["A"], p.Settings().Env["A"], spec.Env["A"] = "2", "2", "2"
	if p.Spec().Env["A"] != "1" || p.Spec().Mounts[0].Source == "/etc" || p.Mounts()[0].Real == "/etc" {
		t.Error("a permit can be changed from outside")
	}
}

func TestPathsAsksOnlyForWhatCouldBeGranted(t *testing.T) {
	spec := api.SandboxSpec{
		Mounts: []api.Mount{
			{Source: "/data/in/"},
			{Source: "/net/slow"},
			{Source: "/etc/x"},
			{Source: "relative"},
		},
		Workspace: &api.Workspace{Dir: "/data/w"},
	}
	set := mustParse(t, "mounts: [{root: /data/}]\nblocked_paths: [/data/secret]")
	if got, want := policy.Paths(spec, tenant, set), []string{"/data", "/data/in", "/data/secret", "/data/w"}; !slices.Equal(got, want) {
		t.Errorf("tenant: %v, want %v", got, want)
	}
	if got, want := policy.Paths(spec, operator, set), []string{"/data", "/data/in", "/data/secret", "/data/w", "/net/slow"}; !slices.Equal(got, want) {
		t.Errorf("operator: %v, want %v", got, want)
	}
	if got := policy.Paths(api.SandboxSpec{}, operator, set); got != nil {
		t.Errorf("nothing asked: %v", got)
	}
}
