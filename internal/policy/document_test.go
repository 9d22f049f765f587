package policy_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// check lists the problems of a file as "line:column kind key".
func check(text string) []string {
	var out []string
	for _, p := range policy.CheckFile([]byte(text)) {
		kind := "error"
		if p.Warning {
			kind = "warning"
		}
		out = append(out, fmt.Sprintf("%d:%d %s %s", p.Line, p.Column, kind, p.Key))
	}
	return out
}

func TestCheckFindsEveryError(t *testing.T) {
	const text = `version: 2
enabeld: true
enabled: maybe
mounts:
  - root: data
    writable: true
  - root: /srv
    tenants: [""]
max_sandboxes: many
max_sandboxes_per_tenant: -1
images: debian
profiles:
  agent:
    defaults: {memory: 2XB, pids: -1}
    ceilings:
      timeout: 90
  agent: {}
  "A b": {}
`
	want := []string{
		"2:1 error enabeld", "3:10 error enabled", "6:5 error mounts[0].writable", "9:16 error max_sandboxes", "11:9 error images",
		"14:24 error profiles.agent.defaults.memory", "16:16 error profiles.agent.ceilings.timeout", "17:3 error profiles.agent",
	}
	if got := check(text); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// What it says is checked as far as it can be read.
	got := check("version: 2\nenabeld: true\nmounts:\n  - root: data\n  - root: /srv\n    tenants: ['']\nblocked_paths:\n  - /a\n  - b\nimage_aliases:\n  a: 'b b'\n  c: d\n  d: host\n")
	want = []string{"1:10 error version", "2:1 error enabeld", "4:11 error mounts[0].root", "6:15 error mounts[1].tenants[0]", "9:5 error blocked_paths[1]", `11:6 error image_aliases["a"]`, `12:6 error image_aliases["c"]`}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, c := range map[string]struct{ text, want string }{
		"syntax":        {"a: b: c\n", "1:"},
		"a tag":         {"images: !x [a]\n", "1:9 error "},
		"two documents": {"engine: auto\n---\nengine: auto\n", "3:"},
		"a list":        {"- a\n", "1:1 error "},
		"a wrong tier":  {"\n\nmin_tier: best\n", "3:11 error min_tier"},
		"too large":     {"# " + strings.Repeat("x", 1<<20), "0:0 error "},
	} {
		if got := check(c.text); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestCheckWarnsOfShadowedRules(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want []string
	}{
		"whole":                 {wholeFile, nil},
		"nothing":               {"", nil},
		"image twice":           {"images:\n  - debian:12\n  - docker.io/library/debian:12\n", []string{"3:5 warning images[1]"}},
		"image in a pattern":    {"images:\n  - debian:12\n  - deb*\n", []string{"2:5 warning images[0]"}},
		"pattern in a pattern":  {"images:\n  - ghcr.io/acme/*\n  - ghcr.io/*\n", []string{"2:5 warning images[0]"}},
		"image blocked":         {"images:\n  - debian:12\nblocked_images: [debian*]\n", []string{"2:5 warning images[0]"}},
		"alias to blocked":      {"image_aliases:\n  a: debian:12\nblocked_images: [debian*]\n", []string{`2:6 warning image_aliases["a"]`}},
		"mount in a mount":      {"mounts:\n  - root: /data\n  - root: /data/in\n", []string{"3:11 warning mounts[1].root"}},
		"mount to write":        {"mounts:\n  - root: /data\n  - root: /data/in\n    write: true\n", nil},
		"mount for one":         {"mounts:\n  - root: /data\n    tenants: [a]\n  - root: /data\n    tenants: [b]\n", nil},
		"mount for all":         {"mounts:\n  - root: /data\n    tenants: [a]\n  - root: /data\n", []string{"2:11 warning mounts[0].root"}},
		"mount blocked":         {"mounts:\n  - root: /data/x\nblocked_paths: [/data]\n", []string{"2:11 warning mounts[0].root"}},
		"mount of the machine":  {"mounts:\n  - root: /etc/ssl\n", []string{"2:11 warning mounts[0].root"}},
		"mount of keys":         {"mounts:\n  - root: /home/a/.ssh/b\n", []string{"2:11 warning mounts[0].root"}},
		"mount of homes":        {"mounts:\n  - root: /home\n", nil},
		"blocked twice":         {"blocked_paths:\n  - /a/b\n  - /a\n", []string{"2:5 warning blocked_paths[0]"}},
		"registry not listed":   {"only_registries: [docker.io]\nregistries:\n  ghcr.io: {insecure: true}\n", []string{"3:3 warning registries.ghcr.io"}},
		"registry blocked":      {"only_registries: [docker.io]\nregistries: {docker.io: {blocked: true}}\n", []string{"1:19 warning only_registries[0]"}},
		"ceiling of a locked":   {"profiles:\n  x:\n    locked: [limits.pids]\n    ceilings:\n      pids: 5\n", []string{"5:13 warning profiles.x.ceilings.pids"}},
		"clamp without ceiling": {"profiles:\n  x:\n    clamp: [limits.timeout_ms]\n", []string{"3:13 warning profiles.x.clamp[0]"}},
		"tenant over the total": {"max_sandboxes: 5\ntenants:\n  red: {max_sandboxes: 6}\n", []string{"3:24 warning tenants.red.max_sandboxes"}},
	} {
		if got := check(c.text); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

// FuzzCheckFile: a file has no errors where a daemon takes it, and the other way
// round; every problem has its words.
func FuzzCheckFile(f *testing.F) {
	f.Add([]byte(wholeFile))
	f.Add([]byte(tenantRules))
	f.Add([]byte("a: 1\na: 2\nmounts: [{root: x, root: y}]"))
	f.Add([]byte("? a\n: b\n"))
	f.Add([]byte("images: [al*, alpine]\nblocked_images: ['*']"))
	f.Add([]byte("tenants: {x: {rate: {requests: 1, per: 25h}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		wrong := false
		for _, p := range policy.CheckFile(data) {
			wrong = wrong || !p.Warning
			if p.Message == "" || p.Hint == "" || p.Line < 0 || p.Column < 0 {
				t.Fatalf("%+v", p)
			}
		}
		if _, err := rules.ParseRules(data); (err != nil) != wrong {
			t.Fatalf("errors %v, and ParseRules says %v", wrong, err)
		}
	})
}
