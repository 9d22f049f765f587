//go:build linux

package ingvisor

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// TestPathRules puts rules on a directory that the gofer serves, and asks every
// way to it: the shell as root and as a user, and the file calls.
func TestPathRules(t *testing.T) {
	b := boot(t, nil)
	b.run(t, `cd /work && mkdir -p secrets/deep src/generated plain && echo s >secrets/deep/key && echo t >token && echo m >src/main.go && echo g >src/generated/g && chmod -R a+rwX .`)
	rule := func(n, p string, a api.PathAccess) agent.Rule {
		return agent.Rule{Name: "mounts[0].rules[" + n + "]", Target: []byte("/work"), Path: []byte(p), Access: a, Make: true}
	}
	err := b.Restrict(t.Context(), []agent.Rule{
		rule("0", "later/on", api.AccessNone), rule("1", "secrets", api.AccessNone), rule("2", "src", api.AccessRead),
		rule("3", "src/generated", api.AccessWrite), rule("4", "token", api.AccessNone),
	})
	if err != nil {
		t.Fatal(err)
	}
	users := users(t)
	const eacces, erofs, exdev = "Permission denied", "Read-only file system", "cross-device"
	for _, c := range []struct{ script, says string }{ // says is compared as root only, who is told more
		{"cat /work/secrets/deep/key", eacces},
		{"ls /work/secrets", eacces},
		{"ls /work/secrets/deep", eacces},
		{"cat /work/token", eacces},
		{"echo x >/work/token", eacces},
		{"echo x >/work/secrets/new", eacces},
		{"mkdir /work/secrets/d", eacces},
		{"ls /work/later/on", eacces},
		{"mkdir /work/later/on/x", eacces},
		{"ln -s /work/secrets/deep/key /work/plain/l1; cat /work/plain/l1", eacces},
		{"ln /work/secrets/deep/key /work/plain/l2", eacces},
		{"mv /work/secrets/deep/key /work/plain/", eacces},
		{"mv /work/secrets /work/elsewhere", "busy"},
		{"rmdir /work/later/on", "busy"},
		{"cd /work/secrets", ""},
		{"echo x >/work/src/new", erofs},
		{"echo x >/work/src/main.go", erofs},
		{"rm /work/src/main.go", erofs},
		{"chmod 777 /work/src/main.go", erofs},
		{"touch /work/src/main.go", erofs},
		{"ln /work/src/main.go /work/plain/hard", exdev},
		{"mv /work/src /work/plain/", "busy"},
		{"mount -t tmpfs x /work/secrets", ""},
		{"umount /work/secrets", ""},
		{"chmod 755 /work/secrets", ""},
		{"chown 0:0 /work/secrets", ""},
	} {
		for _, user := range users {
			s := shell("export LC_ALL=C; " + c.script)
			s.User = user
			r, err := b.Exec(t.Context(), s)
			if err != nil {
				t.Fatal(err)
			}
			if r.OK() || user == "" && !strings.Contains(strings.ToLower(string(r.Stderr)), strings.ToLower(c.says)) {
				t.Errorf("%s as %q: exit %v, %q, want %q", c.script, user, r.ExitStatus(), r.Stderr, c.says)
			}
		}
	}
	// What the rules leave.
	b.run(t, `cat /work/src/main.go && echo x >/work/src/generated/new && echo x >/work/plain/new && mv /work/src/generated/new /work/src/generated/newer && ls /work >/dev/null`)
	// The directory that holds one may move; the refused file moves with it.
	if got := b.run(t, `mkdir /work/up; mv /work/later /work/up/ 2>&1; ls /work/up/later/on 2>&1 || true`); !strings.Contains(got, eacces) && !strings.Contains(got, "busy") {
		t.Errorf("after a move of the directory above: %q", got)
	}
	denied := func(what, rule string, err error) {
		t.Helper()
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != api.CodeDenied || !strings.Contains(e.Rule, rule) || e.Hint == "" {
			t.Errorf("%s: %v (rule %q)", what, err, func() string {
				if ok {
					return e.Rule
				}
				return ""
			}())
		}
	}
	ctx := t.Context()
	_, _, err = b.ReadFile(ctx, "/work/secrets/deep/key", 0, -1)
	denied("read", "rules[1]", err)
	_, _, err = b.ReadFile(ctx, "/work/token", 0, -1)
	denied("read file", "rules[4]", err)
	_, _, err = b.ReadFile(ctx, "/work/plain/l1", 0, -1)
	denied("read by symlink", "rules[1]", err)
	_, err = b.Stat(ctx, "/work/secrets/deep")
	denied("stat", "rules[1]", err)
	_, err = b.List(ctx, "/work/secrets", "", 10)
	denied("list", "rules[1]", err)
	_, err = b.WriteFile(ctx, "/work/secrets/new", agent.WriteOptions{Parents: true}, strings.NewReader("x"))
	denied("write", "rules[1]", err)
	_, err = b.WriteFile(ctx, "/work/src/a/new", agent.WriteOptions{Parents: true}, strings.NewReader("x"))
	denied("write below ro", "rules[2]", err)
	denied("mkdir", "rules[1]", b.MakeDir(ctx, "/work/secrets/x", 0o755, ""))
	denied("move out", "rules[1]", b.Move(ctx, "/work/secrets/deep/key", "/work/plain/key"))
	denied("move in", "rules[1]", b.Move(ctx, "/work/plain/new", "/work/secrets/new"))
	denied("move out of ro", "rules[2]", b.Move(ctx, "/work/src/main.go", "/work/plain/main.go"))
	denied("move the directory", "rules[1]", b.Move(ctx, "/work/secrets", "/work/s2"))
	denied("remove", "rules[1]", b.Remove(ctx, "/work/secrets/deep", true))
	denied("remove ro", "rules[2]", b.Remove(ctx, "/work/src/main.go", false))
	_, err = b.TarOut(ctx, "/work/secrets", api.TarOutOptions{}, io.Discard)
	denied("tar out", "rules[1]", err)
	_, err = b.TarIn(ctx, "/work/secrets", api.TarInOptions{}, archiveOf(t, "f", "x"))
	denied("tar in", "rules[1]", err)
	for _, atomic := range []bool{false, true} {
		_, err = b.TarIn(ctx, "/work", api.TarInOptions{Atomic: atomic}, archiveOf(t, "plain/ok", "x", "src/f", "x"))
		denied("tar in above ro", "rules[2]", err)
		_, err = b.TarIn(ctx, "/work", api.TarInOptions{Atomic: atomic}, archiveOf(t, "secrets/f", "x"))
		denied("tar in above none", "rules[1]", err)
	}
	var buf bytes.Buffer
	if err := b.Remove(ctx, "/work/plain/l1", false); err != nil {
		t.Error(err)
	}
	rep, err := b.TarOut(ctx, "/work", api.TarOutOptions{}, &buf)
	if err != nil || bytes.Contains(buf.Bytes(), []byte("secrets/deep/key\x00")) || !bytes.Contains(buf.Bytes(), []byte("main.go")) {
		t.Errorf("%+v, %v", rep, err)
	}
	if err := b.Restrict(ctx, nil); api.CodeOf(err) != api.CodeState {
		t.Errorf("rules a second time: %v", err)
	}
}

// archiveOf packs pairs of name and content.
func archiveOf(t testing.TB, pairs ...string) io.Reader {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for i := 0; i < len(pairs); i += 2 {
		err := errors.Join(w.WriteHeader(&tar.Header{Name: pairs[i], Mode: 0o644, Size: int64(len(pairs[i+1]))}), func() error { _, err := io.WriteString(w, pairs[i+1]); return err }())
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &buf
}

func TestPathRulesRefused(t *testing.T) {
	for name, c := range map[string]struct {
		prepare string
		rule    agent.Rule
	}{
		"missing":         {"true", agent.Rule{Path: []byte("no/such"), Access: api.AccessNone}},
		"over a symlink":  {"ln -s /etc /work/l", agent.Rule{Path: []byte("l/passwd"), Access: api.AccessNone, Make: true}},
		"a symlink":       {"ln -s /etc /work/l", agent.Rule{Path: []byte("l"), Access: api.AccessRead, Make: true}},
		"through a file":  {"echo >/work/f", agent.Rule{Path: []byte("f/g"), Access: api.AccessRead, Make: true}},
		"dangling":        {"ln -s nowhere /work/l", agent.Rule{Path: []byte("l"), Access: api.AccessNone, Make: true}},
		"no such a mount": {"true", agent.Rule{Target: []byte("/nowhere"), Path: []byte("l"), Access: api.AccessNone, Make: true}},
	} {
		t.Run(name, func(t *testing.T) {
			b := boot(t, nil)
			b.run(t, c.prepare)
			c.rule.Name = "mounts[7].rules[9]"
			if c.rule.Target == nil {
				c.rule.Target = []byte("/work")
			}
			err := b.Restrict(t.Context(), []agent.Rule{c.rule})
			e, ok := errors.AsType[*api.Error](err)
			if !ok || e.Code != api.CodeInvalid || e.Field != c.rule.Name || e.Hint == "" {
				t.Errorf("%v", err)
			}
		})
	}
}
