package policy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// TestPrecedence tries every combination of who has a say in a value: what a
// profile locks, then the caller, then the operator's setting, then the profile.
func TestPrecedence(t *testing.T) {
	// Of each value: how a profile, a setting and a caller say it, and what is granted.
	for _, v := range []struct {
		field            string
		profile, setting string
		ask              func(*api.SandboxSpec)
		got              func(api.SandboxSpec) any
		// by are the profile's value, the setting's, the caller's, and the built-in one.
		by [4]any
	}{
		{"image", "image: debian:11", "image: debian:12", func(s *api.SandboxSpec) { s.Image = "debian:13" },
			func(s api.SandboxSpec) any { return s.Image }, [4]any{"debian:11", "debian:12", "debian:13", "host"}},
		{"read_only_root", "read_only_root: true", "read_only_root: false", func(s *api.SandboxSpec) { s.ReadOnlyRoot = new(true) },
			func(s api.SandboxSpec) any { return *s.ReadOnlyRoot }, [4]any{true, false, true, false}},
		{"limits.memory_bytes", "defaults: {memory: 1GiB}", "limits: {memory: 3GiB}", func(s *api.SandboxSpec) { s.Limits.MemoryBytes = 5 << 30 },
			func(s api.SandboxSpec) any { return s.Limits.MemoryBytes >> 30 }, [4]any{int64(1), int64(3), int64(5), int64(2)}},
		{"limits.pids", "defaults: {pids: 100}", "limits: {pids: 300}", func(s *api.SandboxSpec) { s.Limits.Pids = 500 },
			func(s api.SandboxSpec) any { return s.Limits.Pids }, [4]any{int64(100), int64(300), int64(500), int64(1024)}},
		{"limits.timeout_ms", "defaults: {timeout: 1s}", "limits: {timeout: 3s}", func(s *api.SandboxSpec) { s.Limits.TimeoutMS = 5000 },
			func(s api.SandboxSpec) any { return s.Limits.TimeoutMS }, [4]any{int64(1000), int64(3000), int64(5000), int64(0)}},
		{"limits.idle_ms", "defaults: {idle: 1m}", "limits: {idle: 3m}", func(s *api.SandboxSpec) { s.Limits.IdleMS = 300_000 },
			func(s api.SandboxSpec) any { return s.Limits.IdleMS }, [4]any{int64(60_000), int64(180_000), int64(300_000), int64(0)}},
	} {
		for mask := range 16 {
			locked, asked, set, profiled := mask&8 != 0, mask&4 != 0, mask&2 != 0, mask&1 != 0
			rule, want := []string{}, v.by[3]
			if profiled {
				rule, want = append(rule, v.profile), v.by[0]
			}
			text := "images: ['debian:*']\n"
			if set {
				text += "defaults: {" + v.setting + "}\n"
			}
			spec := api.SandboxSpec{Profile: "mine"}
			if asked {
				v.ask(&spec)
			}
			switch {
			case locked:
				rule = append(rule, "locked: ["+v.field+"]")
			case asked:
				want = v.by[2]
			case set:
				want = v.by[1]
			}
			text += "profiles: {mine: {" + strings.Join(rule, ", ") + "}}"
			name := fmt.Sprintf("%s locked=%t asked=%t set=%t profiled=%t", v.field, locked, asked, set, profiled)
			p := decide(t, spec, operator, mustParse(t, text))
			if got := v.got(p.Spec()); got != want {
				t.Errorf("%s: granted %v, want %v", name, got, want)
			}
			if changed := len(p.Adjusted()) > 0; changed != (locked && asked && want != v.by[2]) {
				t.Errorf("%s: reported %+v", name, p.Adjusted())
			}
		}
	}
}

// TestSettingsOfTheOperator are those for all profiles.
func TestSettingsOfTheOperator(t *testing.T) {
	set := mustParse(t, "defaults: {profile: default, limits: {timeout: 10m, memory: 1GiB}}")
	s := decide(t, api.SandboxSpec{}, tenant, set)
	if s.Profile() != "default" || s.Limits().TimeoutMS != 120_000 || s.Limits().MemoryBytes != 1<<30 {
		t.Errorf("granted %s with %+v; a setting over a ceiling is the ceiling", s.Profile(), s.Limits())
	}
	if info := policy.InfoOf(tenant, set); info.DefaultProfile != "default" {
		t.Errorf("info says that the default profile is %s", info.DefaultProfile)
	}
	for text, key := range map[string]string{
		"defaults: {profile: nope}": "defaults.profile", "defaults: {image: 'a b'}": "defaults.image", "defaults: {limits: {pids: -1}}": "defaults.limits.pids",
		"defaults: {limits: {memory: 1}}": "defaults.limits.memory", "defaults: {network: on}": "defaults.network",
	} {
		_, err := rules.ParseRules([]byte(text))
		want{code: api.CodeInvalid, field: key}.check(t, err)
	}
	got := policy.CheckFile([]byte("defaults: {limits: {memory: 1GiB}}\nprofiles: {mine: {defaults: {memory: 2GiB}}}"))
	if len(got) != 1 || !got[0].Warning || got[0].Key != "profiles.mine.defaults.memory" {
		t.Errorf("a default that is never used: %+v", got)
	}
}

// TestNullIsNotAbsent: a key without a value is an error with its place, except for
// quotas, where it means no quota.
func TestNullIsNotAbsent(t *testing.T) {
	for text, key := range map[string]string{
		"enabled:": "enabled", "engine: null": "engine", "profiles: {x: {defaults: {memory: }}}": "profiles.x.defaults.memory",
		"profiles: {x: {locked: null}}": "profiles.x.locked", "profiles: {x: {clamp: }}": "profiles.x.clamp", "names: {force: ~}": "names.force",
		"mounts: [{root: /a, write: }]": "mounts[0].write", "profiles: {x: {defaults: {max_output: }}}": "profiles.x.defaults.max_output", "images: [null]": "images[0]",
	} {
		_, err := rules.ParseRules([]byte(text))
		want{code: api.CodeInvalid, field: key, says: "no value"}.check(t, err)
	}
	mustParse(t, "max_sandboxes: null\nprofiles: {x: {defaults: {workspace: , workspace_inodes: null}}}\nmounts:\nimages:\n")
}
