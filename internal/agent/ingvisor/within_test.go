//go:build linux

package ingvisor

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

func TestFilesOfAUserWithin(t *testing.T) {
	needsUsers(t)
	b := boot(t, nil)
	b.run(t, "mkdir -p /work/r/d /work/r/hers /work/r/shut /tmp/r; echo x > /work/r/shut/f; echo secret > /work/s; chmod 700 /work/r/shut; chown alice /work/r/hers;"+
		" ln -s /work/s /work/r/abs; ln -s .. /work/r/up; ln -s /work/r/d /work/r/in; ln -s /proc/self/root/work/s /work/r/proc; ln -s /tmp/r /work/r/tmp; ln -s l /work/r/l")
	fs := b.Files(api.FileAccess{User: "alice", Within: []string{"/work/r", "/tmp/r"}})
	write := func(name string) error {
		_, err := fs.Write(t.Context(), name, agent.WriteOptions{Parents: true}, strings.NewReader("new"))
		return err
	}
	for _, name := range []string{"abs", "up/s", "up", "proc", "../s", "up/up/etc/passwd"} {
		_, _, err := fs.Read(t.Context(), "/work/r/"+name, 0, -1)
		_, serr := fs.Stat(t.Context(), "/work/r/"+name, true)
		for what, err := range map[string]error{"read": err, "stat": serr, "write": write("/work/r/" + name)} {
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeDenied || e.Rule != api.RuleWithin {
				t.Errorf("%s %s: %v", what, name, err)
			}
		}
	}
	for name, want := range map[string]string{"shut/f": "EACCES", "new": "EACCES", "in/new": "EACCES", "tmp/new": "EACCES", "l": "ELOOP"} {
		err := write("/work/r/" + name)
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Errno != want {
			t.Errorf("write %s: %v, want %s", name, err, want)
		}
	}
	if err := errors.Join(write("/work/r/hers/a/f"), fs.MakeDir(t.Context(), "/work/r/hers/m", "", api.MakeDirOptions{Exact: true}), write("/work/r/hers/a/f")); err != nil {
		t.Fatal(err)
	}
	if got := b.run(t, "cd /work/r/hers; stat -c %U:%G:%a a a/f m; cat a/f; ls -A a"); got != "alice:alice:755\nalice:alice:644\nalice:alice:755\nnewf" {
		t.Errorf("%q", got)
	}
	l, err := fs.List(t.Context(), "/work/r/hers", "", 0)
	if err != nil || len(l.Files) != 2 || l.Files[0].User != "alice" || l.Files[0].Group != "alice" {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := fs.List(t.Context(), "/work/r/shut", "", 0); err == nil {
		t.Error("alice lists what is root's")
	}
	if err := errors.Join(fs.Move(t.Context(), "/work/r/hers/m", "/work/r/hers/n"), fs.Remove(t.Context(), "/work/r/hers/a", api.RemoveFileOptions{Recursive: true})); err != nil {
		t.Error(err)
	}
	root := b.Files(api.FileAccess{User: "root", Within: []string{"/work/r"}})
	r, _, err := root.Read(t.Context(), "/work/r/shut/f", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if data, err := io.ReadAll(r); err != nil || string(data) != "x\n" {
		t.Errorf("%q, %v", data, err)
	}
	if got := b.run(t, "id -u; id -G; ls -A /work/r/hers"); got != "0\n0\nn" {
		t.Errorf("%q", got)
	}
}
