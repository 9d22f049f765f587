//go:build linux

package ingvisor

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/engine"
)

// The rules of these tests, all of the mount at /work.
var testRules = []struct {
	path   string
	access api.PathAccess
}{{"keys", api.AccessNone}, {"src", api.AccessRead}, {"src/out", api.AccessWrite}, {"token", api.AccessNone}, {"deep", api.AccessWrite}, {"deep/er", api.AccessRead}}

// bootRuled boots a sandbox with the rules in force and told to the engine.
func bootRuled(t testing.TB) *box {
	t.Helper()
	var rules []agent.Rule
	b := bootWith(t, nil, func(p *engine.Plan) {
		for n, r := range testRules {
			p.Rules = append(p.Rules, engine.PathRule{Target: "/work", Path: r.path, Access: r.access})
			rules = append(rules, agent.Rule{Name: fmt.Sprintf("mounts[0].rules[%d]", n), Target: []byte("/work"), Path: []byte(r.path), Access: r.access, Make: true})
		}
		work := p.Mounts[1].Source
		p.Mounts[1].Pinned = true
		for _, dir := range []string{"keys/deep", "src/out", "deep/er", "plain"} {
			if err := os.MkdirAll(filepath.Join(work, dir), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"keys/deep/key", "token", "src/main.go", "src/other.go", "plain/file", "deep/er/file"} {
			if err := os.WriteFile(filepath.Join(work, name), []byte("x\n"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
	})
	b.run(t, "cd /work && chmod -R a+rwX .")
	if err := b.Restrict(t.Context(), rules); err != nil {
		t.Fatal(err)
	}
	return b
}

// listen collects refusals until the test ends.
func (b *box) listen(t testing.TB) <-chan engine.PathDenial {
	t.Helper()
	got := make(chan engine.PathDenial, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- b.instance.(engine.Refuser).Refusals(ctx, func(r engine.PathDenial) { got <- r })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return got
}

func next(t testing.TB, got <-chan engine.PathDenial) engine.PathDenial {
	t.Helper()
	select {
	case r := <-got:
		return r
	case <-time.After(time.Minute):
		t.Fatal("nothing was told")
		return engine.PathDenial{}
	}
}

// attempts are what a program tries; each prints the error that it got.
const attempts = `
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def no(what, f):
    try:
        f()
        print(what, "OK")
    except OSError as e:
        print(what, errno.errorcode[e.errno])
def call(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
os.chdir("/work")
W = os.O_WRONLY
for d, f in (("src", "src/main.go"), ("keys", "keys/deep/key")):
    new = d + "/new"
    no("open " + f, lambda: os.open(f, W))
    no("open " + f, lambda: os.open(f, os.O_RDWR | os.O_TRUNC))
    no("open " + f, lambda: os.open(f, os.O_RDONLY | os.O_TRUNC))
    no("open " + new, lambda: os.open(new, W | os.O_CREAT, 0o644))
    no("open " + new, lambda: os.open(new, W | os.O_CREAT | os.O_EXCL, 0o644))
    no("mkdir " + new, lambda: os.mkdir(new))
    no("mknod " + new, lambda: os.mkfifo(new))
    no("remove " + f, lambda: os.unlink(f))
    no("rename " + f, lambda: os.rename(f, "plain/moved"))
    no("rename " + f, lambda: os.rename(f, "/tmp/moved"))
    no("rename " + new, lambda: os.rename("plain/file", new))
    no("link " + f, lambda: os.link(f, "plain/linked"))
    no("link " + new, lambda: os.link("plain/file", new))
    no("symlink " + new, lambda: os.symlink("../plain/file", new))
    no("chmod " + f, lambda: os.chmod(f, 0o600))
    no("chown " + f, lambda: os.chown(f, os.getuid(), os.getgid()))
    no("utimes " + f, lambda: os.utime(f))
    no("truncate " + f, lambda: os.truncate(f, 0))
    no("setxattr " + f, lambda: os.setxattr(f, "user.a", b"b"))
    no("removexattr " + f, lambda: os.removexattr(f, "user.a", follow_symlinks=False))
    no("bind " + new, lambda: socket.socket(socket.AF_UNIX).bind(new))
f = "src/main.go"
fd = os.open(f, os.O_RDONLY)
no("chmod " + f, lambda: os.fchmod(fd, 0o600))
no("chown " + f, lambda: os.fchown(fd, os.getuid(), os.getgid()))
no("utimes " + f, lambda: os.utime(fd))
no("setxattr " + f, lambda: os.setxattr(fd, "user.a", b"b"))
no("removexattr " + f, lambda: os.removexattr(fd, "user.a"))
no("open " + f, lambda: os.open("/proc/self/fd/%d" % fd, W))
src = os.open("src", os.O_RDONLY)
no("mkdir src/at", lambda: os.mkdir("at", dir_fd=src))
no("remove src/main.go", lambda: os.unlink("main.go", dir_fd=src))
no("open src/x/../new", lambda: call("open", b"src/out/../new", W | os.O_CREAT, 0o644))
os.chdir("src")
no("open src/there", lambda: os.open("there", W | os.O_CREAT, 0o644))
os.chdir("../plain")
for link, to in (("l1", "../src/main.go"), ("l2", "../src/nothing"), ("l3", "l2"), ("l4", "/work/keys/deep/key")):
    if not os.path.islink(link):
        os.symlink(to, link)
no("open src/main.go", lambda: os.open("l1", W))
no("open src/nothing", lambda: os.open("l2", W | os.O_CREAT))
no("open src/nothing", lambda: os.open("l3", W | os.O_CREAT))
no("open keys/deep/key", lambda: os.open("l4", os.O_RDONLY))
os.chdir("..")
# What only looks.
no("open keys/deep/key", lambda: os.open("keys/deep/key", os.O_RDONLY))
no("open keys", lambda: os.listdir("keys"))
no("open token", lambda: os.open("token", os.O_RDONLY))
no("stat keys/deep/key", lambda: os.stat("keys/deep/key"))
no("readlink keys/deep/key", lambda: os.readlink("keys/deep/key"))
no("chdir keys", lambda: os.chdir("keys"))
no("exec keys/deep/key", lambda: os.execv("keys/deep/key", ["x"]))
no("exec token", lambda: os.execv("token", ["x"]))
no("connect keys/deep/key", lambda: socket.socket(socket.AF_UNIX).connect("keys/deep/key"))
# What is a rule's own place, and what is above one.
no("rename keys", lambda: os.rename("keys", "elsewhere"))
no("rename src", lambda: os.rename("src", "plain/src"))
no("rename deep/er", lambda: os.rename("deep/er", "plain/er"))
no("rename deep", lambda: os.rename("deep", "elsewhere"))
no("remove token", lambda: os.unlink("token"))
no("chmod keys", lambda: os.chmod("keys", 0o777))
`

// nearby are files that the rules allow, and errors that have another cause.
const nearby = `
import errno, os, sys
os.chdir("/work")
def err(f):
    try:
        f()
        return "OK"
    except OSError as e:
        return errno.errorcode[e.errno]
def want(what, f, *codes):
    got = err(f)
    if got not in codes:
        print(what, got)
want("read", lambda: open("src/main.go").read(), "OK")
want("write in rw", lambda: open("src/out/new", "w").write("x"), "OK")
want("attribute in rw", lambda: os.setxattr("src/out/new", "user.a", b"b"), "OK", "EOPNOTSUPP")
want("attribute that is read", lambda: os.getxattr("src/out/new", "user.a"), "OK", "EOPNOTSUPP")
want("attribute that goes", lambda: os.removexattr("src/out/new", "user.a"), "OK", "EOPNOTSUPP")
want("rename in rw", lambda: os.rename("src/out/new", "src/out/newer"), "OK")
want("rename between", lambda: os.rename("src/out/newer", "plain/newer"), "EXDEV")
want("link of ro in another mount", lambda: os.link("src/main.go", "/tmp/linked"), "EXDEV")
want("mkdir of what is there", lambda: os.mkdir("src/out"), "EEXIST")
want("no such program", lambda: os.execv("src/main.go", ["x"]), "EACCES", "ENOEXEC")
want("not the mount's", lambda: os.mkdir("/proc/x"), "ENOENT", "EACCES", "EPERM")
want("read only by nature", lambda: open("/usr/x", "w"), "EROFS", "EACCES")
want("attribute of what is read-only", lambda: os.setxattr("/usr/bin/env", "user.a", b"b"), "EROFS", "EACCES", "EPERM")
print("may write", os.access("src/main.go", os.W_OK), os.access("src/main.go", os.R_OK))
`

// TestRefusedByRule tries everything in what is to be read only and in what is
// denied, as root and as a user: the answer is EACCES, and all is told or counted.
func TestRefusedByRule(t *testing.T) {
	b := bootRuled(t)
	got := b.listen(t)
	for _, user := range users(t) {
		uid := uint32(0)
		if user != "" {
			uid = 1000
		}
		s := start("python3", "-c", attempts)
		s.User = user
		r, err := b.Exec(t.Context(), s)
		if err != nil || !r.OK() {
			t.Fatalf("%v, %v %s", err, r, r.Stderr)
		}
		lines := strings.Split(strings.TrimSpace(string(r.Stdout)), "\n")
		if len(lines) < 70 {
			t.Fatalf("%d attempts: %s", len(lines), r.Stdout)
		}
		for _, line := range lines {
			if !strings.HasSuffix(line, " EACCES") {
				t.Errorf("%s as %q", line, user)
			}
		}
		if t.Failed() {
			return
		}
		seen := 0
		for n := 0; n < len(lines); {
			told := next(t, got)
			n += int(told.Missed)
			seen++
			if told.Rule < 0 {
				continue
			}
			op, rest, _ := strings.Cut(lines[n], " ")
			name, _, _ := strings.Cut(rest, " ")
			if told.Op != op || told.Path != strings.Replace(name, "x/../", "", 1) || told.Rule != ruleOf(name) || told.UID != uid || !strings.HasPrefix(told.Program, "python3") {
				t.Fatalf("%d: %s as %q is told as %+v\n%s", n, lines[n], user, told, r.Stdout)
			}
			n++
		}
		if seen < 20 && user == "" {
			t.Errorf("%d told", seen)
		}
		s = start("python3", "-c", nearby)
		s.User = user
		r, err = b.Exec(t.Context(), s)
		if err != nil || string(r.Stdout) != "may write False True\n" {
			t.Errorf("as %q: %v, %s%s", user, err, r.Stdout, r.Stderr)
		}
	}
	b.run(t, `cd /work; test "$(cat src/main.go src/other.go)" = "$(printf 'x\nx')" && test ! -e src/new && test ! -e src/nothing`)
}

// ruleOf is the number of the rule that a path is refused by.
func ruleOf(name string) int {
	switch top, _, _ := strings.Cut(name, "/"); top {
	case "keys":
		return 0
	case "src":
		return 1
	case "token":
		return 3
	}
	return 5
}

// TestTarRefusedByRule: an archive gets no further than a program.
func TestTarRefusedByRule(t *testing.T) {
	b := bootRuled(t)
	got := b.listen(t)
	before := b.run(t, "cd /work && ls -lRn src plain")
	for name, c := range map[string]struct {
		rule string
		h    tar.Header
	}{
		"file":             {"rules[1]", tar.Header{Typeflag: tar.TypeReg, Name: "src/new", Mode: 0o644}},
		"file over one":    {"rules[1]", tar.Header{Typeflag: tar.TypeReg, Name: "src/main.go", Mode: 0o644}},
		"directory":        {"rules[1]", tar.Header{Typeflag: tar.TypeDir, Name: "src/dir/", Mode: 0o755}},
		"symlink":          {"rules[1]", tar.Header{Typeflag: tar.TypeSymlink, Name: "src/link", Linkname: "main.go"}},
		"hard link in":     {"rules[1]", tar.Header{Typeflag: tar.TypeLink, Name: "src/link", Linkname: "plain/file"}},
		"hard link out":    {"rules[1]", tar.Header{Typeflag: tar.TypeLink, Name: "plain/link", Linkname: "src/main.go"}},
		"denied":           {"rules[0]", tar.Header{Typeflag: tar.TypeReg, Name: "keys/deep/new", Mode: 0o644}},
		"denied directory": {"rules[0]", tar.Header{Typeflag: tar.TypeDir, Name: "keys/dir/", Mode: 0o755}},
		"denied link out":  {"rules[0]", tar.Header{Typeflag: tar.TypeLink, Name: "plain/link", Linkname: "keys/deep/key"}},
		"denied file":      {"rules[3]", tar.Header{Typeflag: tar.TypeReg, Name: "token", Mode: 0o644}},
	} {
		for _, atomic := range []bool{false, true} {
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			if err := errors.Join(w.WriteHeader(&c.h), w.Close()); err != nil {
				t.Fatal(err)
			}
			rep, err := b.TarIn(t.Context(), "/work", api.TarInOptions{Atomic: atomic}, &buf)
			e, ok := errors.AsType[*api.Error](err)
			if !ok || e.Code != api.CodeDenied || !strings.HasSuffix(e.Rule, c.rule) {
				t.Errorf("%s, atomic %v: %+v, %v", name, atomic, rep, err)
			}
		}
	}
	if after := b.run(t, "cd /work && ls -lRn src plain"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	for _, err := range []error{
		b.Move(t.Context(), "/work/deep", "/work/elsewhere"), b.Move(t.Context(), "/work/deep/er", "/work/plain/er"),
		b.Move(t.Context(), "/work/plain/file", "/work/deep/er/file"), b.Remove(t.Context(), "/work/deep/er/file", false),
	} {
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeDenied || !strings.HasSuffix(e.Rule, "rules[5]") {
			t.Errorf("%v", err)
		}
	}
	// What the agent is refused it tells itself.
	select {
	case r := <-got:
		t.Errorf("told twice: %+v", r)
	default:
	}
}
