package policy_test

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/policy/rules"
)

// FuzzNoAgentArgumentChangesThePermit has a server's context and, beside it, what
// an agent may choose: command, directory, time, environment. Whatever the agent
// writes, the same sandbox is meant, it is what it is without that, and the program
// gets what any other gets: what is refused is refused for its form alone.
func FuzzNoAgentArgumentChangesThePermit(f *testing.F) {
	f.Add("ls", "-l", "", "HOME", "/root", "/workspace", []byte("in"), int64(0), uint8(0))
	f.Add("--identity=launcher_id=1", "{launcher_id}", "", "launcher_id", "1", "/{global}", []byte(`{"identity":{}}`), int64(1000), uint8(1))
	f.Add("sh", "", "cloche exec --profile network_extended -", "CLOCHE__POLICY__NAMES__FORCE", "false", "/", []byte{0, 255}, int64(1<<40), uint8(2))
	f.Add("\x00", "a\nb", "", "A=B", "\x00", "../..", []byte{}, int64(-1), uint8(3))
	f.Add("x", "y", "", "CLOCHE_TOKEN", "admin", "relative", []byte("tenant: local"), int64(120_001), uint8(7))
	f.Fuzz(func(t *testing.T, program, arg, shell, name, value, cwd string, stdin []byte, timeout int64, bits uint8) {
		server := []policy.Caller{operator, tenant, {Tenant: "acme", UID: -1}}[int(bits)%3]
		set := rules.Rules{Names: rules.NameRule{Force: bits&4 != 0}}
		naming := api.Naming{Identity: &api.Identity{LauncherType: "group", LauncherID: "42"}}
		spec := api.SandboxSpec{Profile: "default", Naming: naming}
		own, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, server, set)
		if err != nil {
			t.Fatal(err)
		}
		req := api.ExecRequest{Naming: naming, Argv: []string{program, arg}, Env: map[string]string{name: value}, Cwd: cwd, Stdin: stdin}
		if shell != "" {
			req.Argv, req.Shell = nil, shell
		}
		if bits&8 != 0 {
			req.TimeoutMS = &timeout
		}
		sameTarget(t, req, server, set)
		in := own.Settings()
		in.Ref, in.Env = "sb-1", map[string]string{"KEEP": "me"}
		plain, err := policy.DecideExec(api.ExecRequest{Argv: []string{"true"}}, in, server, set)
		if err != nil {
			t.Fatal(err)
		}
		got, err := policy.DecideExec(req, in, server, set)
		if err != nil {
			if code := api.CodeOf(err); code != api.CodeInvalid && code != api.CodeTooLarge {
				t.Fatalf("%+v is refused with %s: %v", req, code, err)
			}
			return
		}
		samePermit(t, req, in, plain, got)
		// What the sandbox is was decided without any of it, and is so again.
		again, err := policy.Decide(policy.Request{Spec: spec, Facts: facts()}, server, set)
		if err != nil || !reflect.DeepEqual(own, again) {
			t.Fatalf("the sandbox's permit is another after %+v: %v", req, err)
		}
	})
}

// sameTarget: the sandbox is the server's context's alone.
func sameTarget(t *testing.T, req api.ExecRequest, server policy.Caller, set rules.Rules) {
	t.Helper()
	target, err := policy.DecideTarget(api.RefByNaming, req.Naming, server, set)
	if err != nil || target.Ref() != "group_42" {
		t.Fatalf("the request is for %q: %v", target.Ref(), err)
	}
}

func samePermit(t *testing.T, req api.ExecRequest, in policy.Settings, plain, got policy.ExecPermit) {
	t.Helper()
	if got.User() != plain.User() || got.MaxOutput() != plain.MaxOutput() {
		t.Fatalf("%+v runs as %q with %d bytes of output, any other as %q with %d", req, got.User(), got.MaxOutput(), plain.User(), plain.MaxOutput())
	}
	switch ceiling := 120 * time.Second; {
	case req.TimeoutMS == nil && (got.Timeout() != plain.Timeout() || len(got.Adjusted()) > 0):
		t.Fatalf("%+v may run for %v, any other for %v: %+v", req, got.Timeout(), plain.Timeout(), got.Adjusted())
	case got.Timeout() <= 0 || got.Timeout() > ceiling:
		t.Fatalf("%+v may run for %v, over the ceiling of its profile", req, got.Timeout())
	}
	env := maps.Clone(in.Env)
	maps.Copy(env, req.Env)
	if !maps.Equal(got.Env(), env) {
		t.Fatalf("%+v has the environment %v", req, got.Env())
	}
	argv := req.Argv
	if req.Shell != "" {
		argv = []string{"/bin/sh", "-c", req.Shell}
	}
	if !slices.Equal(got.Argv(), argv) {
		t.Fatalf("%+v became %q", req, got.Argv())
	}
	granted := got.Request()
	if !reflect.DeepEqual(granted.Naming, api.Naming{}) || fmt.Sprint(granted.Combined, granted.TTY, granted.User) != fmt.Sprint(false, false, "") {
		t.Fatalf("%+v was granted as %+v", req, granted)
	}
}
