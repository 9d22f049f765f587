package policy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

const wholeFile = `
version: 1
enabled: true
engine: auto
min_tier: gvisor
images: [debian:12, "ghcr.io/acme/*"]
blocked_images: ["docker.io/evil/*"]
image_aliases: {"python:3.11-slim": host}
image_pins: {"debian:12": "sha256:abababababababababababababababababababababababababababababababab"}
registries: {docker.io: {mirrors: ["mirror.example:5000/hub"]}, "mirror.example:5000": {insecure: true}, bad.example: {blocked: true}}
only_registries: [docker.io, ghcr.io]
image_store: {max: 20GiB}
mounts:
  - root: /data
  - root: /srv/shared
    write: true
    tenants: [tcp]
blocked_paths: [/data/private]
max_sandboxes: 100
max_sandboxes_per_tenant: 10
audit: {argv: full}
profiles:
  agent:
    ceilings: {memory: 8GiB, timeout: 1h}
  build:
    extends: default
    defaults: {cpus: 4, memory: 1.5GiB, pids: 512, disk: 10GB, timeout: 90s, max_output: 4MiB}
    ceilings: {timeout: 10m}
    image: debian:12
    network: none
    read_only_root: false
    workspace_read_only: false
    locked: [image, limits.cpus]
    clamp: [limits.timeout_ms, limits.memory_bytes]
`

func TestParseWholeFile(t *testing.T) {
	r := mustParse(t, wholeFile)
	if !r.IsEnabled() || r.AuditArgv() != "full" || r.MaxSandboxes != 100 || len(r.Mounts) != 2 || !r.Mounts[1].Write {
		t.Errorf("rules %+v", r)
	}
	d := r.Profiles["build"].Defaults
	if *d.Memory != 3<<29 || *d.Disk != 10e9 || *d.Timeout != rules.Duration(90*time.Second) || *d.MaxOutput != 4<<20 {
		t.Errorf("defaults %+v", d)
	}
	p := decide(t, api.SandboxSpec{Profile: "build", Limits: api.Limits{MemoryBytes: 100 << 30}}, operator, r)
	if l := p.Limits(); l.CPUs != 4 || l.MemoryBytes != 64<<30 || l.Pids != 512 || l.TimeoutMS != 90_000 || p.Spec().Image != "debian:12" || *p.Spec().ReadOnlyRoot {
		t.Errorf("granted %+v", p.Spec())
	}
	if l := decide(t, api.SandboxSpec{}, operator, r).Limits(); l.TimeoutMS != 3_600_000 || l.MemoryBytes != 2<<30 {
		t.Errorf("agent %+v", l)
	}
	for _, empty := range []string{"", "\n", "# nothing\n", "{}", "---\n", "profiles: {x: {defaults: {workspace: null, disk: }}}", "mounts:\nimages: null\nmax_sandboxes:\n"} {
		if r := mustParse(t, empty); !r.IsEnabled() {
			t.Errorf("%q is not the zero Rules", empty)
		}
	}
}

func TestParseRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		want want
	}{
		"unknown key":       {"enabledd: true", want{says: "enabledd"}},
		"unknown inner key": {"profiles: {agent: {defaults: {memroy: 1GiB}}}", want{says: "memroy"}},
		"repeated key":      {"engine: a\nengine: b\n", want{says: "engine"}},
		"not YAML":          {"a: [", want{}},
		"a list":            {"- a\n", want{}},
		"two documents":     {"engine: auto\n---\nengine: auto\n", want{says: "more than one"}},
		"tag":               {"mounts: !00000 000", want{says: "a tag"}},
		"alias":             {"images: &a [x]\nblocked_images: *a", want{says: "an anchor"}},
		"merge key":         {"profiles: {x: {<<: {image: x}}}", want{says: "a merge key"}},
		"version":           {"version: 2", want{field: "version", says: "reads version 1"}},
		"enabled":           {"enabled: maybe", want{}},
		"min_tier none":     {"min_tier: none", want{field: "min_tier", says: "namespace"}},
		"min_tier unknown":  {"min_tier: best", want{field: "min_tier"}},
		"engine fake":       {"engine: fake", want{field: "engine", says: "doctor"}},
		"profile's engine":  {"profiles: {p: {engine: fake}}", want{field: "profiles.p.engine", says: "doctor"}},
		"engine syntax":     {"engine: 'a b'", want{field: "engine"}},
		"audit argv":        {"audit: {argv: some}", want{field: "audit.argv", says: "full"}},
		"image":             {"images: ['a b']", want{field: "images[0]"}},
		"blocked image":     {"blocked_images: [x, '']", want{field: "blocked_images[1]"}},
		"mount relative":    {"mounts: [{root: data}]", want{field: "mounts[0].root", says: "relative"}},
		"mount dots":        {"mounts: [{root: /a/../etc}]", want{field: "mounts[0].root"}},
		"mount no root":     {"mounts: [{write: true}]", want{field: "mounts[0].root"}},
		"mount tenant":      {"mounts: [{root: /a, tenants: ['']}]", want{field: "mounts[0].tenants[0]"}},
		"blocked relative":  {"blocked_paths: [x]", want{field: "blocked_paths[0]"}},
		"count negative":    {"max_sandboxes: -1", want{field: "max_sandboxes"}},
		"profile name":      {"profiles: {'A b': {}}", want{field: "profiles.A b"}},
		"extends unknown":   {"profiles: {x: {extends: nope}}", want{field: "profiles.x.extends", says: "offline_readonly"}},
		"extends itself":    {"profiles: {agent: {extends: default}}", want{field: "profiles.agent.extends"}},
		"profile image":     {"profiles: {x: {image: '-'}}", want{field: "profiles.x.image"}},
		"profile expiry":    {"profiles: {x: {on_expiry: pause}}", want{field: "profiles.x.on_expiry", says: "stop or suspend"}},
		"profile network":   {"profiles: {x: {network: host}}", want{field: "profiles.x.network"}},
		"locked unknown":    {"profiles: {x: {locked: [env]}}", want{field: "profiles.x.locked[0]", says: "read_only_root"}},
		"clamp unknown":     {"profiles: {x: {clamp: [image]}}", want{field: "profiles.x.clamp[0]", says: "limits.timeout_ms"}},
		"default negative":  {"profiles: {x: {defaults: {pids: -1}}}", want{field: "profiles.x.defaults.pids"}},
		"cpus not a number": {"profiles: {x: {ceilings: {cpus: .nan}}}", want{field: "profiles.x.ceilings.cpus"}},
		"cpus infinite":     {"profiles: {x: {ceilings: {cpus: .inf}}}", want{field: "profiles.x.ceilings.cpus", says: "infinite"}},
		"default too high":  {"profiles: {x: {defaults: {memory: 2GiB}, ceilings: {memory: 1GiB}}}", want{field: "profiles.x.defaults.memory", says: "1GiB"}},
		"size unit":         {"profiles:\n  x:\n    defaults: {memory: 2XB}\n", want{says: "line 3, column 24: profiles.x.defaults.memory: size \"2XB\""}},
		"size a list":       {"profiles: {x: {defaults: {memory: [1]}}}", want{says: "one value"}},
		"size empty":        {"profiles: {x: {defaults: {memory: ''}}}", want{says: "512MiB"}},
		"size negative":     {"profiles: {x: {defaults: {memory: -2}}}", want{says: "512MiB"}},
		"size huge":         {"profiles: {x: {defaults: {memory: 1e300}}}", want{says: "512MiB"}},
		"time without unit": {"profiles: {x: {defaults: {timeout: 90}}}", want{says: "1h30m"}},
		"time negative":     {"profiles: {x: {defaults: {timeout: -1s}}}", want{says: "1h30m"}},
		"too large":         {"# " + strings.Repeat("x", 1<<20), want{code: api.CodeTooLarge}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rules.ParseRules([]byte(c.text))
			if c.want.code == "" {
				c.want.code = api.CodeInvalid
			}
			c.want.check(t, err)
		})
	}
}
