package policy_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// FuzzDecide feeds any request and any policy file to Decide and holds every
// answer against what is true of all of them.
func FuzzDecide(f *testing.F) {
	f.Add([]byte(`{}`), []byte(``), uint8(0))
	f.Add([]byte(`{"profile":"offline_readonly","network":"on","limits":{"timeout_ms":999999}}`), []byte(`min_tier: gvisor`), uint8(1))
	f.Add([]byte(`{"mounts":[{"source":"/data/in","target":"/m"}],"workspace":{"dir":"/data/link","path":"/srv/job"}}`), []byte(`mounts: [{root: /data, write: true}]`), uint8(2))
	f.Add([]byte(`{"env":{"A":"x"},"labels":{"a/b":"c"},"files":[{"path":"/a/b","content":"x","mode":420}],"user":"1:2"}`), []byte(`profiles: {agent: {ceilings: {pids: 3}, clamp: [limits.pids], locked: [image]}}`), uint8(0))
	f.Add([]byte(`{"limits":{"cpus":1e308,"memory_bytes":9223372036854775807,"pids":-9223372036854775808}}`), []byte(`{"images":["*"]}`), uint8(3))
	f.Fuzz(func(t *testing.T, spec, set []byte, who uint8) {
		var s api.SandboxSpec
		if json.Unmarshal(spec, &s) != nil {
			return
		}
		r, err := rules.ParseRules(set)
		if err != nil {
			return
		}
		c := []policy.Caller{operator, root, tenant, policy.UnixCaller(-1, 0)}[who%4]
		fs := facts()
		for _, p := range policy.Paths(s, c, r) {
			if _, known := fs.Dirs[p]; !known && len(p)%3 > 0 {
				fs.Dirs[p] = dir(p, 1000)
			}
		}
		p, err := policy.Decide(policy.Request{Spec: s, Facts: fs}, c, r)
		if err != nil {
			e, ok := errors.AsType[*api.Error](err)
			if !ok || p.Valid() || e.Hint == "" && e.Code != api.CodeInternal || e.Code == api.CodeDenied && e.Rule == "" {
				t.Fatalf("refusal %+v, valid %t", err, p.Valid())
			}
			if strings.ContainsAny(e.Message, "\x00\n\x1b") {
				t.Fatalf("message is not one line of text: %q", e.Message)
			}
			return
		}
		q, err := policy.Decide(policy.Request{Spec: p.Spec(), Facts: fs}, c, r)
		if err != nil || len(q.Adjusted()) != 0 || !reflect.DeepEqual(q.Spec(), p.Spec()) {
			t.Fatalf("deciding again: %v\n%+v\n%+v", err, p.Spec(), q.Spec())
		}
		for _, d := range p.Mounts() {
			if strings.HasPrefix(d.Real+"/", "/etc/") || d.Real == "/" || strings.HasPrefix(d.Target+"/", "/proc/") {
				t.Fatalf("mount %+v", d)
			}
		}
	})
}

// FuzzDecideExec feeds any exec request to DecideExec.
func FuzzDecideExec(f *testing.F) {
	f.Add([]byte(`{"argv":["a","b"]}`), false)
	f.Add([]byte(`{"shell":"x","timeout_ms":0,"max_output_bytes":9,"env":{"A":"1"},"cwd":"/x"}`), true)
	f.Add([]byte(`{"python":"x","stdin":{"base64":"AAA="},"timeout_ms":-1,"tty":true,"rows":65535}`), false)
	f.Fuzz(func(t *testing.T, data []byte, boxed bool) {
		var req api.ExecRequest
		if json.Unmarshal(data, &req) != nil {
			return
		}
		in := policy.Settings{Tenant: "local", Profile: "agent", Cwd: "/workspace", Limits: api.Limits{MaxOutputBytes: 5}}
		if boxed {
			in.Profile, in.Limits.TimeoutMS = "default", 30_000
		}
		x, err := policy.DecideExec(req, in, operator, rules.Rules{})
		if err != nil {
			if x.Valid() || api.CodeOf(err) == api.CodeInternal {
				t.Fatalf("refusal %+v", err)
			}
			return
		}
		if len(x.Argv()) == 0 || x.Argv()[0] == "" || !strings.HasPrefix(x.Cwd(), "/") || x.MaxOutput() < 1 || x.MaxOutput() > api.MaxMaxOutput || x.Timeout() < 0 {
			t.Fatalf("granted %+v", x)
		}
		if boxed && (x.Timeout() == 0 || x.Timeout().Seconds() > 120) {
			t.Fatalf("timeout %v over the ceiling", x.Timeout())
		}
		y, err := policy.DecideExec(api.ExecRequest{
			Argv: x.Argv(), Env: x.Env(), Cwd: x.Cwd(), User: x.User(), TimeoutMS: x.Request().TimeoutMS, MaxOutputBytes: x.MaxOutput(),
		}, in, operator, rules.Rules{})
		if err != nil || len(y.Adjusted()) != 0 {
			t.Fatalf("what was granted is refused or changed: %v %+v", err, y.Adjusted())
		}
	})
}

// FuzzParseRules feeds any text to ParseRules; what it takes, Decide can use.
func FuzzParseRules(f *testing.F) {
	f.Add([]byte(wholeFile))
	f.Add([]byte("profiles: {a: {defaults: {cpus: .nan}}}"))
	f.Add([]byte("blocked_paths: !00 0\n000:00000"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("%YAML 1.2\n---\nenabled: !!bool true\n...\n"))
	f.Add([]byte("version: 0x1\nmounts: [{<<: {root: /a}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := rules.ParseRules(data)
		if err != nil {
			if _, ok := errors.AsType[*api.Error](err); !ok {
				t.Fatalf("error of type %T", err)
			}
			return
		}
		for _, name := range rules.Profiles(r) {
			_, err := policy.Decide(policy.Request{Spec: api.SandboxSpec{Profile: name}, Facts: facts()}, operator, r)
			if code := api.CodeOf(err); code == api.CodeInternal || code == api.CodeInvalid && err.(*api.Error).Field == "profile" {
				t.Fatalf("profile %q was accepted and cannot be used: %v", name, err)
			}
		}
	})
}
