package audit_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/audit"
)

const secret = "s3cr3t"

func TestDetailsHoldNoSecret(t *testing.T) {
	env := map[string]string{"TOKEN": secret, "A": secret}
	d := audit.ExecDetails(cloche.ExecRequest{
		Argv: []string{"/usr/bin/curl", "-H", secret}, Shell: secret, Python: secret, Stdin: cloche.Bytes(secret),
		Env: env, Cwd: "/w", User: "nobody", TimeoutMS: new(int64(5)), TTY: true,
	}, false)
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
	s := audit.SpecDetails(cloche.SandboxSpec{
		Name: "n", Profile: "agent", Image: "host", Env: env, Labels: map[string]string{"team": "x"},
		Mounts:    []cloche.Mount{{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/d", ReadOnly: true}},
		Workspace: &cloche.Workspace{Name: "w", Path: "/srv"}, Limits: cloche.Limits{Pids: 3},
		Files: []cloche.File{{Path: "/x", Content: cloche.Bytes(secret)}, {Path: "/y", Content: cloche.Bytes("1")}},
	})
	for k, v := range map[string]string{
		"name": "n", "env": "A TOKEN", "labels": "team", "mounts": "/a:/b:rw /c:/d:ro", "files": "2", "files_bytes": "7",
		"workspace": "w", "workspace_path": "/srv", "limits": `{"pids":3}`,
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
		return audit.ExecDetails(cloche.ExecRequest{Argv: argv}, false)["argv_sha256"]
	}
	if of("a b") == of("a", "b") || of("a") == of("a", "") {
		t.Error("digests do not identify a command line")
	}
}

func TestFullArgvOnlyOnRequest(t *testing.T) {
	req := cloche.ExecRequest{Argv: []string{"a", secret}}
	if got := audit.ExecDetails(req, true)["argv"]; got != `["a","`+secret+`"]` {
		t.Errorf("argv %q", got)
	}
	if got, ok := audit.ExecDetails(req, false)["argv"]; ok {
		t.Errorf("argv %q without being asked for", got)
	}
}
