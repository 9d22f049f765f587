package rules_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

func over(key, text string) rules.Override {
	return rules.Override{Name: "CLOCHE__POLICY__" + strings.ToUpper(strings.ReplaceAll(key, ".", "__")), Path: strings.Split(key, "."), Text: text}
}

// TestOverrides are set whether or not the file has the key.
func TestOverrides(t *testing.T) {
	for _, file := range []string{"", "# none\n", "max_sandboxes: 3\nimages: [x, y]\nprofiles: {agent: {defaults: {memory: 1GiB, pids: 7}}}\nnames: {template: old, force: false}"} {
		r, err := rules.ParseRulesOver([]byte(file), []rules.Override{
			over("max_sandboxes", " 20 "), over("images", " debian:12 , alpine ,"), over("blocked_images", "['a', b]"), over("enabled", "false"),
			over("profiles.agent.defaults.memory", "3GiB"), over("profiles.agent.defaults.cpus", "0.5"), over("profiles.agent.defaults.timeout", "90s"),
			over("names.force", "true"), over("names", "{template: 'x_{sender_id}'}"), over("max_snapshot_bytes_per_tenant", "1073741824"),
			over("tenants.acme.max_sandboxes", "4"), over("max_workspaces_per_tenant", ""), over("image_aliases", "{py: 'python:3'}"), over("nope.nope", "1"),
		})
		if err != nil {
			t.Fatal(err)
		}
		d := r.Profiles["agent"].Defaults
		if r.MaxSandboxes != 20 || strings.Join(r.Images, " ") != "debian:12 alpine" || strings.Join(r.BlockedImages, " ") != "a b" || r.IsEnabled() ||
			*d.Memory != 3<<30 || *d.CPUs != 0.5 || *d.Timeout != rules.Duration(90e9) || !r.Names.Force || r.Names.Template != "x_{sender_id}" ||
			r.MaxSnapshotBytesPerTenant != 1<<30 || *r.Tenants["acme"].MaxSandboxes != 4 || r.ImageAliases["py"] != "python:3" {
			t.Errorf("%q became %+v", file, r)
		}
		if kept := d.Pids != nil && *d.Pids == 7; kept != (len(file) > 10) {
			t.Errorf("what the file says beside it: %v", d.Pids)
		}
	}
	if r, err := rules.ParseRulesOver([]byte("max_sandboxes: 3"), []rules.Override{over("max_sandboxes", "")}); err != nil || r.MaxSandboxes != 0 {
		t.Errorf("an empty quota is none: %d, %v", r.MaxSandboxes, err)
	}
}

// TestBadOverrides name the setting and the key.
func TestBadOverrides(t *testing.T) {
	for _, tc := range []struct{ key, text string }{
		{"max_sandboxes", "-1"}, {"max_sandboxes", "1.5"}, {"max_sandboxes", "many"}, {"max_sandboxes", "true"}, {"max_sandboxes", "1e3"}, {"max_sandboxes", "[1]"},
		{"max_workspaces_per_tenant", "-3"}, {"max_snapshot_bytes_per_tenant", "-1"}, {"max_snapshot_bytes_per_tenant", "lots"}, {"enabled", "yes"}, {"enabled", ""},
		{"profiles.agent.defaults.memory", "2XB"}, {"names.template", "{"}, {"names.force", "1"}, {"images", "a b"}, {"mounts", "/data"}, {"mounts", "[{rot: /a}]"},
		{"rate", "{requests: fast}"}, {"names", "[a]"}, {"image_aliases", "{a: [}"}, {"tenants.acme.max_sandboxes", "-1"},
	} {
		o := over(tc.key, tc.text)
		_, err := rules.ParseRulesOver([]byte("max_sandboxes: 1"), []rules.Override{over("max_snapshots_per_tenant", "1"), o})
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeInvalid || !strings.HasPrefix(e.Field, tc.key) || !strings.Contains(e.Message, o.Name) {
			t.Errorf("%s=%q: %v (field %q)", o.Name, tc.text, err, e.Field)
		}
	}
	if _, err := rules.ParseRulesOver([]byte("enabeld: true"), []rules.Override{over("enabled", "true")}); err == nil || !strings.Contains(err.Error(), "line 1, column 1") {
		t.Errorf("what is wrong with the file is told with its place: %v", err)
	}
	if !rules.KnownKey([]string{"profiles", "x", "defaults", "memory"}) || rules.KnownKey([]string{"profiles", "x", "memory"}) || rules.KnownKey(nil) || rules.KnownKey([]string{"images", "0"}) {
		t.Error("the keys that are known are others")
	}
}

func TestKeysSet(t *testing.T) {
	got, err := rules.KeysSet([]byte("max_sandboxes: 3\nregistries: {r.example: {mirrors: ['http://u:hunter2@m.example']}}\nnames: {force: true}"),
		[]rules.Override{over("max_sandboxes", "4"), over("names", "{force: false, template: t}"), over("images", "a,b")})
	const want = "[{images [a b] CLOCHE__POLICY__IMAGES} {max_sandboxes 4 CLOCHE__POLICY__MAX_SANDBOXES} " +
		"{names.force false CLOCHE__POLICY__NAMES} {names.template t CLOCHE__POLICY__NAMES} {registries.r.example.mirrors [http://u:xxxxx@m.example] }]"
	if err == nil && fmt.Sprint(got) != want {
		t.Errorf("got  %v\nwant %s", got, want)
	}
	hidden, err := rules.KeysSet([]byte("secrets: [{name: a, from: {exec: [/bin/vault, --token=hunter2, a]}, hosts: [x.example]}]"), nil)
	if err != nil || strings.Contains(fmt.Sprint(hidden), "hunter2") || !strings.Contains(fmt.Sprint(hidden), "/bin/vault") {
		t.Errorf("the arguments of a command are shown: %v, %v", hidden, err)
	}
	if none, err := rules.KeysSet(nil, nil); err != nil || len(none) != 0 {
		t.Errorf("nothing is set: %v, %v", none, err)
	}
}

// TestOverridesLeaveTheRest: to set one key changes none beside it, whatever its text
// looks like to YAML.
func TestOverridesLeaveTheRest(t *testing.T) {
	for _, text := range []string{
		"null", "~", "true", "on", "1e3", "0x10", "017", "1_000", ".inf", "2001-01-01", "12:30", "-", "- a", "a: b", "#a", " a ", "a\\nb", "é", "张三", "{a}", "[a]", "!x", "&x", "*x",
		"%", "@a", "`a", "'", "\\\"", "\\t", "a #b", "|", ">", "?", "=", "<<", "1.0", "1.", "\\u0085", "\\u2028", "0b1", "+1", "1 000", "NaN", "y", "\\e",
	} {
		file := []byte("mounts: [{root: /a, tenants: [\"" + text + "\"]}]\nimages: ['debian:12']\nprofiles: {x: {defaults: {cpus: 1.5, memory: 1073741824}}}")
		plain, err := rules.ParseRules(file)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got, err := rules.ParseRulesOver(file, []rules.Override{over("max_sandboxes", "4")})
		plain.MaxSandboxes = 4
		if err != nil || !reflect.DeepEqual(got, plain) {
			t.Errorf("%s: %+v, %v, want %+v", text, got.Mounts, err, plain.Mounts)
		}
	}
}

// FuzzOverride: any text for any key is taken or refused in the form of a refusal, and
// what is taken is what the whole file could say.
func FuzzOverride(f *testing.F) {
	for _, s := range [][2]string{
		{"max_sandboxes", "3"}, {"images", "a, b"}, {"images", "[a"}, {"names", "{force: true}"}, {"mounts", "- {root: /a}"}, {"profiles.x.defaults.memory", "1GiB"},
		{"tenants", "!!map {a: &b {}}"}, {"rate.per", "1s"}, {"registries", "? a\n: b"}, {"a.b", "c"}, {"egress.allow", "pypi.org,@npm"}, {"image_aliases", "{<<: {a: b}}"},
	} {
		f.Add(s[0], s[1], []byte("max_sandboxes: 3\nimages: [x]\n"))
	}
	f.Fuzz(func(t *testing.T, key, text string, file []byte) {
		_, err := rules.ParseRulesOver(file, []rules.Override{over(key, text)})
		if err != nil {
			if _, ok := errors.AsType[*api.Error](err); !ok {
				t.Fatalf("error of type %T: %v", err, err)
			}
			return
		}
		if _, err := rules.KeysSet(file, []rules.Override{over(key, text)}); err != nil {
			t.Fatalf("taken, and not to be shown: %v", err)
		}
	})
}
