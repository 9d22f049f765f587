package audit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
)

const secret = "s3cr3t"

func TestDetailsHoldNoSecret(t *testing.T) {
	env := map[string]string{"TOKEN": secret, "A": secret}
	d := audit.ExecDetails(api.ExecRequest{
		Argv: []string{"/usr/bin/curl", "-H", secret}, Shell: secret, Python: secret, Stdin: api.Bytes(secret),
		Env: env, Cwd: "/w", User: "nobody", TimeoutMS: new(int64(5)), TTY: true,
	}, audit.Disclosure{Redactor: known{secret}})
	want := map[string]string{
		"program": "curl", "argc": "3", "env": "A TOKEN", "cwd": "/w", "user": "nobody", "timeout_ms": "5", "tty": "true",
		"shell_bytes": "6", "python_bytes": "6", "stdin_bytes": "6",
		"shell_sha256": "4e738ca5563c06cfd0018299933d58db1dd8bf97f6973dc99bf6cdc64b5550bd",
	}
	for k, v := range want {
		if d[k] != v {
			t.Errorf("%s is %q, want %q", k, d[k], v)
		}
	}
	s := audit.SpecDetails(api.SandboxSpec{
		Name: "n", Profile: "agent", Image: "host", Env: env, Labels: map[string]string{"team": "x"},
		Mounts: []api.Mount{
			{Source: "/a", Target: "/b"},
			{Source: "/c", Target: "/d", ReadOnly: true, Rules: []api.PathRule{{Path: "k", Access: api.AccessNone}, {Path: "s/t", Access: api.AccessRead}}},
		},
		Snapshot: "ready", User: "user", Sudo: true,
		Workspace: &api.Workspace{Name: "w", Path: "/srv", Rules: []api.PathRule{{Path: "v", Access: api.AccessRead}}}, Limits: api.Limits{Pids: 3},
		Files: []api.File{{Path: "/x", Content: api.Bytes(secret)}, {Path: "/y", Content: api.Bytes("1")}},
	})
	for k, v := range map[string]string{
		"name": "n", "env": "A TOKEN", "labels": "team", "mounts": "/a:/b:rw /c:/d:ro", "files": "2", "files_bytes": "7",
		"snapshot": "ready", "user": "user", "sudo": "true", "mount_rules": "/d(k:none s/t:ro)", "workspace_rules": "v:ro", "workspace": "w", "workspace_path": "/srv", "limits": `{"pids":3}`,
	} {
		if s[k] != v {
			t.Errorf("%s is %q, want %q", k, s[k], v)
		}
	}
	for _, m := range []map[string]string{d, s} {
		if text, err := json.Marshal(m); err != nil || strings.Contains(string(text), secret) {
			t.Errorf("%s, %v", text, err)
		}
	}
}

func TestArgvDigestTellsArgumentsApart(t *testing.T) {
	of := func(argv ...string) string {
		return audit.ExecDetails(api.ExecRequest{Argv: argv}, audit.Disclosure{})["argv_sha256"]
	}
	if of("a b") == of("a", "b") || of("a") == of("a", "") {
		t.Error("digests do not identify a command line")
	}
}

// known is a Redactor of some values.
type known []string

func (k known) Redact(s string) string {
	for _, v := range k {
		s = strings.ReplaceAll(s, v, audit.Redacted)
	}
	return s
}

func TestArgv(t *testing.T) {
	long := strings.Repeat("x", 4000)
	for _, tc := range []struct {
		mode string
		argv []string
		want string
	}{
		{"", []string{"a", "b c"}, `["a","b c"]`},
		{audit.ArgvHash, []string{"a", "b"}, ""},
		{audit.ArgvFull, []string{"curl", "-H", "Authorization: Bearer abcdefgh", secret}, `["curl","-H","Authorization: Bearer abcdefgh","[redacted]"]`},
		{"", []string{"curl", "-H", "Authorization: Bearer abcdefgh.ijk-l", "x"}, `["curl","-H","Authorization: Bearer [redacted]","x"]`},
		{"", []string{"curl", "-H", "authorization:basic dXNlcjpwYXNz=="}, `["curl","-H","authorization:basic [redacted]"]`},
		{"", []string{"t", "BEARER\tabcdefgh", "Bearer", "abcdefgh"}, `["t","BEARER\t[redacted]","Bearer","[redacted]"]`},
		{"", []string{"sh", "-c", "curl -H 'Authorization: Bearer abcdefgh' -H \"X: Basic ijklmnop\" u"}, `["sh","-c","curl -H 'Authorization: Bearer [redacted]' -H \"X: Basic [redacted]\" u"]`},
		{"", []string{"git", "clone", "https://me:hunter2@example.com/a@b?c=d", "ssh://me@h/", "http://h/a:b@c"}, `["git","clone","https://me:[redacted]@example.com/a@b?c=d","ssh://me@h/","http://h/a:b@c"]`},
		{"", []string{"echo", "a basic test", "unbasic abcdefgh", "forbearer"}, `["echo","a basic test","unbasic abcdefgh","forbearer"]`},
		{"", []string{"echo", "x" + secret + "y"}, `["echo","x[redacted]y"]`},
	} {
		got := audit.ExecDetails(api.ExecRequest{Argv: tc.argv}, audit.Disclosure{Argv: tc.mode, Redactor: known{secret}})["argv"]
		if got = strings.NewReplacer(`\u003c`, "<", `\u0026`, "&").Replace(got); got != strings.ReplaceAll(tc.want, "\t", "\\t") {
			t.Errorf("%s %q:\n%s, want\n%s", tc.mode, tc.argv, got, tc.want)
		}
	}
	// A secret across the cut leaves nothing of itself.
	d := audit.ExecDetails(api.ExecRequest{Argv: []string{long, strings.Repeat("y", 88) + secret + "z"}}, audit.Disclosure{Redactor: known{secret}})
	if strings.Contains(d["argv"], "s3c") || d["argv_bytes"] == "" {
		t.Errorf("argv ends %q, %s bytes", d["argv"][4080:], d["argv_bytes"])
	}
}
