package policy_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestBlockedInHomes: in a home directory the directories with credentials, and those from
// which the user's tools start programs, are blocked with what holds them; in a project
// directories of the same names are free.
func TestBlockedInHomes(t *testing.T) {
	for p, rule := range map[string]string{
		"/home/bob/.config":               "blocked_path:.config/systemd",
		"/home/bob/.config/gh":            "blocked_path:.config/gh",
		"/home/bob/.config/systemd/user":  "blocked_path:.config/systemd",
		"/home/bob/.config/autostart":     "blocked_path:.config/autostart",
		"/home/bob/.config/op":            "blocked_path:.config/op",
		"/home/bob/.config/sops":          "blocked_path:.config/sops",
		"/home/bob/.config/sops/age":      "blocked_path:.config/sops",
		"/home/bob/.config/mytool":        "",
		"/home/bob/.local":                "blocked_path:.local/bin",
		"/home/bob/.local/bin":            "blocked_path:.local/bin",
		"/home/bob/.local/share":          "blocked_path:.local/share/applications",
		"/home/bob/.local/share/keyrings": "blocked_path:.local/share/keyrings",
		"/home/bob/.local/share/mytool":   "",
		"/home/bob/.cargo":                "blocked_path:.cargo",
		"/home/bob/.cargo/bin":            "blocked_path:.cargo",
		"/home/bob/.claude":               "blocked_path:.claude",
		"/home/bob/.codex/sessions":       "blocked_path:.codex",
		"/home/bob/.pki":                  "blocked_path:.pki",
		"/home/bob/.thunderbird/x":        "blocked_path:.thunderbird",
		"/home/bob/.cache":                "",
		"/home/bob/.cache/pip":            "",
		"/home/bob/bin":                   "blocked_path:bin",
		"/home/bob/project/bin":           "",
		"/home/bob/project/.cargo":        "",
		"/home/bob/project/.claude":       "",
		"/home/bob/project/.config":       "",
		"/home/bob/project/.config/gh":    "blocked_path:.config/gh",
		"/home/bob/.cargos":               "",
		"/root/.config":                   "blocked_path:.config/systemd",
		"/root/.cargo":                    "blocked_path:.cargo",
		"/root/work/.cargo":               "",
		"/var/people/ann/.codex":          "blocked_path:.codex",
		"/var/people/ann/.local/lib":      "blocked_path:.local/lib",
		"/var/people/ann/work":            "",
		"/var/people/bob/.codex":          "",
		"/Users/ann/.claude":              "blocked_path:.claude",
		"/srv/.cargo":                     "",
		"/srv/x/.pki":                     "blocked_path:.pki",
	} {
		for _, readOnly := range []bool{true, false} {
			f := everywhere(0, p)
			f.UserHome, f.Home = "/var/people/ann", "/var/lib/cloche"
			err := decideDir(t, p, readOnly, f, root, rules.Rules{})
			if rule == "" && err != nil {
				t.Errorf("%s: %v", p, err)
			}
			if rule != "" {
				want{code: api.CodeDenied, rule: rule}.check(t, err)
			}
		}
	}
}

func decidePrivate(t *testing.T, found []policy.PrivatePath, spec api.SandboxSpec, set rules.Rules) (policy.Permit, error) {
	t.Helper()
	f := everywhere(0, "/srv/people")
	fact := f.Dirs["/srv/people"]
	fact.Private = found
	f.Dirs["/srv/people"] = fact
	return policy.Decide(policy.Request{Spec: spec, Facts: f}, root, set)
}

// TestPrivatePathsAreCovered: what was found in a directory is a rule of its mount, and
// tightens what the request and the operator say.
func TestPrivatePathsAreCovered(t *testing.T) {
	found := []policy.PrivatePath{
		{Path: "bob/.ssh", Name: ".ssh", Access: api.AccessNone},
		{Path: "bob/.bashrc", Name: ".bashrc", Access: api.AccessRead},
		{Path: ".netrc", Name: ".netrc", Access: api.AccessNone},
	}
	none := func(p string) api.PathRule { return api.PathRule{Path: p, Access: api.AccessNone} }
	read := func(p string) api.PathRule { return api.PathRule{Path: p, Access: api.AccessRead} }
	for name, c := range map[string]struct {
		readOnly     bool
		rules        []api.PathRule
		want         []api.PathRule
		adjustedWant int
	}{
		"to write":           {false, nil, []api.PathRule{none(".netrc"), read("bob/.bashrc"), none("bob/.ssh")}, 3},
		"to read":            {true, nil, []api.PathRule{none(".netrc"), none("bob/.ssh")}, 2},
		"asked for less":     {false, []api.PathRule{none("bob")}, []api.PathRule{none(".netrc"), none("bob")}, 1},
		"asked for a part":   {false, []api.PathRule{read("bob/.ssh/config")}, []api.PathRule{none(".netrc"), read("bob/.bashrc"), none("bob/.ssh")}, 3},
		"asked for the same": {false, []api.PathRule{none("bob/.ssh"), none(".netrc"), none("bob/.bashrc")}, []api.PathRule{none(".netrc"), none("bob/.bashrc"), none("bob/.ssh")}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			spec := mount("/srv/people", c.readOnly)
			spec.Mounts[0].Rules = c.rules
			p, err := decidePrivate(t, found, spec, rules.Rules{})
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Spec().Mounts[0].Rules; !slices.Equal(got, c.want) {
				t.Errorf("the mount has the rules %v, want %v", got, c.want)
			}
			if got := p.Adjusted(); len(got) != c.adjustedWant {
				t.Errorf("told of %v", got)
			}
			again, err := decidePrivate(t, found, p.Spec(), rules.Rules{})
			if err != nil || !slices.Equal(again.Spec().Mounts[0].Rules, c.want) || len(again.Adjusted()) != 0 {
				t.Errorf("decided again: %v %v %v", again.Spec().Mounts, again.Adjusted(), err)
			}
			w := api.SandboxSpec{Workspace: &api.Workspace{Dir: "/srv/people", ReadOnly: c.readOnly, Rules: c.rules}}
			p, err = decidePrivate(t, found, w, rules.Rules{})
			if err != nil || !slices.Equal(p.Spec().Workspace.Rules, c.want) {
				t.Errorf("the workspace has the rules %v, want %v: %v", p.Spec().Workspace.Rules, c.want, err)
			}
		})
	}
	found = nil
	for i := range 65 {
		found = append(found, policy.PrivatePath{Path: fmt.Sprintf("u%02d/.ssh", i), Name: ".ssh", Access: api.AccessNone})
	}
	_, err := decidePrivate(t, found, mount("/srv/people", true), rules.Rules{})
	want{code: api.CodeDenied, rule: "blocked_path:.ssh"}.check(t, err)
}
