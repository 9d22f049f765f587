//go:build linux

package guest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

// placedTree is a directory with a root, a grant and what is in neither.
func placedTree(t *testing.T) string {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for p := top; p != "/"; p = filepath.Dir(p) {
		if st, err := os.Stat(p); err == nil && st.Mode().Perm()&0o055 == 0o055 {
			continue // which may be another user's
		}
		if err := os.Chmod(p, 0o755); err != nil && p != "/tmp" {
			t.Fatal(err)
		}
		if p == "/tmp" {
			_ = os.Chmod(p, 0o777|os.ModeSticky)
		}
	}
	for name, content := range map[string]string{
		"root/f": "content", "root/d/g": "deeper", "root/d/e/h": "", "rootx/f": "neighbour", "grant/f": "granted",
		"grant/fixed/f": "fixed", "out/secret": "secret",
	} {
		p := filepath.Join(top, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"abs": top + "/out/secret", "up": "../out/secret", "near": "../rootx/f", "dir-out": "../out", "top": "/", "in": "d",
		"loop": "loop", "granted": top + "/grant", "fixed": top + "/grant/fixed", "gone": "nowhere", "gone-out": "../out/nowhere",
		"back": "nowhere/../../x", "around": "../out/../root/f", "home": top + "/root/f", "proc": "/proc/self/root" + top + "/root/f",
		"fd": "/proc/self/fd/0", "d/parent": "..",
	} {
		if err := os.Symlink(to, filepath.Join(top, "root", name)); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

// everything that leads out does so with the same word, and changes nothing.
func TestWithin(t *testing.T) {
	in := boot(t, nil)
	top := placedTree(t)
	ctx := t.Context()
	fs := in.Files(api.FileAccess{Within: []string{top + "/root", top + "/grant"}, ReadWithin: []string{top + "/grant/fixed"}})
	read := func(name string) (string, error) {
		r, _, err := fs.Read(ctx, name, 0, -1)
		if err != nil {
			return "", err
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		return string(data), err
	}
	write := func(name, content string) error {
		_, err := fs.Write(ctx, name, agent.WriteOptions{Parents: true}, strings.NewReader(content))
		return err
	}
	refused := func(what string, err error, rule string) {
		t.Helper()
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeDenied || e.Rule != rule {
			t.Errorf("%s: %v, want %s", what, err, rule)
		}
	}
	for name, want := range map[string]string{
		"root/f": "content", "root/in/g": "deeper", "root/d/parent/f": "content", "root/around": "content", "root/home": "content",
		"root/granted/f": "granted", "root/fixed/f": "fixed", "grant/fixed/../f": "granted", "root//./d/../f": "content", "root/dir-out/../root/f": "content",
	} {
		if got, err := read(top + "/" + name); err != nil || got != want {
			t.Errorf("read %s: %q, %v", name, got, err)
		}
	}
	for _, name := range []string{
		"root/abs", "root/up", "root/near", "root/dir-out/secret", "root/dir-out/none", "root/dir-out/none/deep", "root/top/etc/passwd", "root/gone-out",
		"root/back", "root/../out/secret", "rootx/f", "out/secret", "root/top", "root/dir-out", "root/..", "root/proc", "root/fd", "root/top/proc/self/root/etc/passwd",
	} {
		p := top + "/" + name
		_, err := read(p)
		refused("read "+name, err, api.RuleWithin)
		refused("write "+name, write(p, "x"), api.RuleWithin)
		_, err = fs.List(ctx, p, "", 0)
		refused("list "+name, err, api.RuleWithin)
		_, err = fs.Stat(ctx, p, true)
		refused("stat "+name, err, api.RuleWithin)
		refused("mkdir "+name, fs.MakeDir(ctx, p, "", api.MakeDirOptions{}), api.RuleWithin)
		refused("mkdir below "+name, fs.MakeDir(ctx, p+"/a/b", "", api.MakeDirOptions{}), api.RuleWithin)
	}
	for _, name := range []string{"root/dir-out/secret", "rootx/f", "root/d/../../out/secret", "root/top/etc/passwd", "root/d/parent/../rootx"} {
		p := top + "/" + name
		refused("remove "+name, fs.Remove(ctx, p, api.RemoveFileOptions{Recursive: true}), api.RuleWithin)
		refused("move from "+name, fs.Move(ctx, p, top+"/root/here"), api.RuleWithin)
		refused("move to "+name, fs.Move(ctx, top+"/root/f", p), api.RuleWithin)
	}
	for _, name := range []string{"root/fixed/f", "grant/fixed/new", "root/granted/fixed/f", "grant/fixed/a/b"} {
		refused("write "+name, write(top+"/"+name, "x"), api.RuleReadWithin)
		refused("mkdir "+name, fs.MakeDir(ctx, top+"/"+name, "", api.MakeDirOptions{}), api.RuleReadWithin)
		refused("remove "+name, fs.Remove(ctx, top+"/"+name, api.RemoveFileOptions{}), api.RuleReadWithin)
		refused("move "+name, fs.Move(ctx, top+"/"+name, top+"/root/x"), api.RuleReadWithin)
	}
	refused("remove the root", fs.Remove(ctx, top+"/root", api.RemoveFileOptions{Recursive: true}), api.RuleWithin)
	refused("move the root", fs.Move(ctx, top+"/grant", top+"/root/g"), api.RuleWithin)
	for _, name := range []string{"root/loop", "root/loop/x"} {
		if _, err := read(top + "/" + name); api.CodeOf(err) != api.CodeInvalid || errnoOf(err) != "ELOOP" {
			t.Errorf("read %s: %v", name, err)
		}
	}
	for name, want := range map[string]string{"root/gone": "ENOENT", "root/x/y": "ENOENT", "root/f/x": "ENOTDIR", "root/f/": "ENOTDIR", "root/d": "EISDIR"} {
		if _, err := read(top + "/" + name); errnoOf(err) != want {
			t.Errorf("read %s: %v, want %s", name, err, want)
		}
	}
	if got, err := os.ReadFile(top + "/out/secret"); err != nil || string(got) != "secret" {
		t.Errorf("outside: %q, %v", got, err)
	}
	for _, dir := range []string{"out", "rootx", "grant/fixed"} {
		if l, err := os.ReadDir(filepath.Join(top, dir)); err != nil || len(l) != 1 {
			t.Errorf("%s has %v, %v", dir, l, err)
		}
	}
}

// TestWithinOverARunningProgram: what runs cannot be written, and can be replaced.
func TestWithinOverARunningProgram(t *testing.T) {
	in := boot(t, nil)
	top := placedTree(t)
	prog := top + "/root/prog"
	in.run(t, "cp /bin/sleep "+prog+" && "+prog+" 1000 > /dev/null 2>&1 & while ! grep -qs "+prog+" /proc/*/maps; do :; done")
	fs := in.Files(api.FileAccess{Within: []string{top + "/root"}})
	if _, err := fs.Write(t.Context(), prog, agent.WriteOptions{}, strings.NewReader("replaced")); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(prog); err != nil || string(got) != "replaced" {
		t.Errorf("%.20q, %v", got, err)
	}
}

func errnoOf(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Errno
	}
	return ""
}

// what is asked of what is within is done.
func TestWithinIsDone(t *testing.T) {
	in := boot(t, nil)
	top := placedTree(t)
	ctx := t.Context()
	fs := in.Files(api.FileAccess{Within: []string{top + "/root", top + "/not/there/yet"}})
	put := func(name, content string) api.FileInfo {
		t.Helper()
		info, err := fs.Write(ctx, top+"/"+name, agent.WriteOptions{Parents: true, User: "77:78"}, strings.NewReader(content))
		if err != nil {
			t.Fatalf("write %s: %v", name, err)
		}
		return info
	}
	if err := errors.Join(os.Chown(top+"/root/f", 5, 6), unix.Chmod(top+"/root/f", 0o4751)); err != nil {
		t.Fatal(err)
	}
	if info := put("root/home", "again"); info.Mode != 0o4751 || info.UID != 5 || info.GID != 6 || info.Type != api.TypeFile {
		t.Errorf("a file that is replaced: %+v", info)
	}
	if info := put("root/a/b/c", "new"); info.UID != 77 || info.GID != 78 || info.Mode != 0o644 {
		t.Errorf("a new file: %+v", info)
	}
	put("root/gone", "made")
	put("not/there/yet/f", "made")
	for name, want := range map[string]string{"root/f": "again", "root/a/b/c": "new", "root/nowhere": "made", "not/there/yet/f": "made"} {
		if got, err := os.ReadFile(filepath.Join(top, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if to, err := os.Readlink(top + "/root/home"); err != nil || to != top+"/root/f" {
		t.Errorf("the link: %q, %v", to, err)
	}
	exact := api.MakeDirOptions{Exact: true, Mode: 0o1777}
	if err := fs.MakeDir(ctx, top+"/root/n", "", exact); err != nil {
		t.Fatal(err)
	}
	if st, err := fs.Stat(ctx, top+"/root/n", false); err != nil || st.Mode != 0o1777 {
		t.Errorf("%+v, %v", st, err)
	}
	for name, want := range map[string]string{"root/n": "EEXIST", "root/n/o/p": "ENOENT"} {
		if err := fs.MakeDir(ctx, top+"/"+name, "", exact); errnoOf(err) != want {
			t.Errorf("mkdir %s: %v", name, err)
		}
	}
	if err := fs.Remove(ctx, top+"/root/n", api.RemoveFileOptions{KeepDirs: true}); errnoOf(err) != "EISDIR" {
		t.Errorf("remove a directory: %v", err)
	}
	if err := fs.Remove(ctx, top+"/root/d", api.RemoveFileOptions{}); errnoOf(err) != "ENOTEMPTY" {
		t.Errorf("remove a full directory: %v", err)
	}
	// Links out of it are removed and moved themselves.
	for _, name := range []string{"top", "dir-out"} {
		if err := fs.Move(ctx, top+"/root/"+name, top+"/root/d/"+name); err != nil {
			t.Errorf("move %s: %v", name, err)
		}
	}
	if err := fs.Remove(ctx, top+"/root/abs", api.RemoveFileOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	for range 200 { // more than one reading of the directory has
		put("root/d/"+api.NewID("long-name-of-a-file-"), "")
	}
	if err := fs.Remove(ctx, top+"/root/d", api.RemoveFileOptions{Recursive: true}); err != nil {
		t.Error(err)
	}
	if got, err := os.ReadFile(top + "/out/secret"); err != nil || string(got) != "secret" {
		t.Errorf("outside: %q, %v", got, err)
	}
	l, err := fs.List(ctx, top+"/root", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range l.Files {
		names = append(names, f.Name)
	}
	if slices.Contains(names, "d") || slices.Contains(names, "abs") || !slices.Contains(names, "a") || slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, ".cloche") }) {
		t.Errorf("left: %q", names)
	}
	if l.Files[0].User == "" && l.Files[0].UID == 0 {
		t.Errorf("no names: %+v", l.Files[0])
	}
}

// what a user may not do is not done, as the kernel sees it.
func TestFilesOfAUser(t *testing.T) {
	in := boot(t, nil)
	top := placedTree(t)
	ctx := t.Context()
	for name, p := range map[string]struct {
		uid, gid int
		mode     os.FileMode
	}{
		"hers": {4001, 4001, 0o755}, "shut": {0, 0, 0o700}, "group": {0, 4002, 0o775}, "sticky": {0, 0, 0o777 | os.ModeSticky}, "ro": {0, 0, 0o755},
	} {
		dir := filepath.Join(top, "root", name)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(dir+"/f", []byte("old"), 0o644), os.Chown(dir, p.uid, p.gid), os.Chmod(dir, p.mode)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(top+"/root/ro/f", 0o666), os.Chmod(top+"/root/sticky/f", 0o666), os.Chown(top+"/root/hers/f", 4001, 4001),
		os.WriteFile(top+"/root/hers/roots", nil, 0o644), os.WriteFile(top+"/root/hers/suid", nil, 0o755), unix.Chmod(top+"/root/hers/suid", 0o4777)); err != nil {
		t.Fatal(err)
	}
	for _, access := range []api.FileAccess{{User: "4001:4001"}, {User: "4001:4001", Within: []string{top + "/root"}}} {
		fs := in.Files(access)
		write := func(name string) error {
			_, err := fs.Write(ctx, top+"/root/"+name, agent.WriteOptions{Parents: true}, strings.NewReader("new"))
			return err
		}
		for _, name := range []string{"hers/f", "hers/new/g", "ro/f", "sticky/f", "hers/suid"} {
			if err := write(name); err != nil {
				t.Errorf("write %s: %v", name, err)
			}
			if got, err := os.ReadFile(top + "/root/" + name); err != nil || string(got) != "new" {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		for name, uid := range map[string]uint32{"hers/f": 4001, "hers/new": 4001, "hers/new/g": 4001, "ro/f": 0, "sticky/f": 0, "hers/suid": 0} {
			if st, err := fs.Stat(ctx, top+"/root/"+name, false); err != nil || st.UID != uid || st.Mode&0o6000 != 0 {
				t.Errorf("%s: %+v, %v", name, st, err)
			}
		}
		for _, name := range []string{"shut/f", "shut/new", "ro/new", "f", "new", "hers/roots", "group/new"} {
			if err := write(name); errnoOf(err) != "EACCES" {
				t.Errorf("write %s: %v", name, err)
			}
		}
		_, _, err := fs.Read(ctx, top+"/root/shut/f", 0, -1)
		_, lerr := fs.List(ctx, top+"/root/shut", "", 0)
		_, serr := fs.Stat(ctx, top+"/root/shut/f", false)
		for what, err := range map[string]error{
			"read": err, "list": lerr, "stat": serr,
			"remove": fs.Remove(ctx, top+"/root/ro/f", api.RemoveFileOptions{}), "remove a tree": fs.Remove(ctx, top+"/root/ro", api.RemoveFileOptions{Recursive: true}),
			"mkdir": fs.MakeDir(ctx, top+"/root/new", "", api.MakeDirOptions{}), "move": fs.Move(ctx, top+"/root/ro/f", top+"/root/hers/x"),
		} {
			if errnoOf(err) != "EACCES" {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := fs.Move(ctx, top+"/root/sticky/f", top+"/root/hers/x"); errnoOf(err) != "EPERM" {
			t.Errorf("move out of a sticky directory: %v", err)
		}
	}
	// Groups count, and root's rights are those of its programs.
	if _, err := in.Files(api.FileAccess{User: "4001:4002"}).Write(ctx, top+"/root/group/new", agent.WriteOptions{}, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	if _, err := in.Files(api.FileAccess{User: "root"}).Write(ctx, top+"/root/shut/f", agent.WriteOptions{}, strings.NewReader("x")); err != nil {
		t.Error(err)
	}
	if _, err := in.Files(api.FileAccess{User: "nobody-of-that-name"}).Stat(ctx, top, false); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("no such user: %v", err)
	}
	// The agent is itself again.
	if got := in.run(t, "id -u; id -G"); got != "0\n0" {
		t.Errorf("id: %q", got)
	}
	if left, _ := filepath.Glob(top + "/root/*/.cloche-*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestAnOlderAgentIsNotAsked for what it would not heed.
func TestAnOlderAgentIsNotAsked(t *testing.T) {
	old := boot(t, func(_ *agent.Config, cmd *execCmd) { cmd.Env = append(cmd.Env, onlyVersion1+"=1") })
	if _, err := old.Stat(t.Context(), "/"); err != nil {
		t.Fatal(err)
	}
	_, followed := old.Files(api.FileAccess{}).Stat(t.Context(), "/", true)
	_, asUser := old.Files(api.FileAccess{User: "1"}).Stat(t.Context(), "/", false)
	_, within := old.Files(api.FileAccess{Within: []string{"/tmp"}}).List(t.Context(), "/", "", 0)
	for what, err := range map[string]error{
		"follow": followed, "user": asUser, "within": within,
		"exact": old.Files(api.FileAccess{}).MakeDir(t.Context(), "/", "", api.MakeDirOptions{Exact: true}),
		"keep":  old.Files(api.FileAccess{}).Remove(t.Context(), "/nothing", api.RemoveFileOptions{KeepDirs: true}),
	} {
		if api.CodeOf(err) != api.CodeUnsupported {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestBoundsAreChecked(t *testing.T) {
	in := boot(t, nil)
	top := placedTree(t)
	for name, dir := range map[string]string{"relative": "x", "empty": "", "the root": "/", "a way to the root": top + "/root/top", "the kernel's": "/proc", "a file": top + "/root/f", "a loop": top + "/root/loop"} {
		for field, a := range map[string]api.FileAccess{"within": {Within: []string{dir}}, "read_within": {Within: []string{top}, ReadWithin: []string{dir}}} {
			_, err := in.Files(a).Stat(t.Context(), top+"/root/f", false)
			if e, ok := errors.AsType[*api.Error](err); !ok || e.Field != field {
				t.Errorf("%s as %s: %v", name, field, err)
			}
		}
	}
	many := slices.Repeat([]string{top}, api.MaxFileWithin+1)
	if _, err := in.Files(api.FileAccess{Within: many}).Stat(t.Context(), top, false); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("too many: %v", err)
	}
	deep := top + "/root/" + strings.Repeat("d/../", 700) + "f"
	if st, err := in.Files(api.FileAccess{Within: []string{top}}).Stat(t.Context(), deep, false); err != nil || st.Name != "f" {
		t.Errorf("a long path: %+v, %v", st, err)
	}
}

// TestUserWritesNoSetID: what runs with the rights of its owner does so no more when a user
// has replaced its content, in the root too.
func TestUserWritesNoSetID(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	for _, err := range []error{
		os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, 1000, 1000), os.WriteFile(name, []byte("before"), 0o755),
		os.Chown(name, 1000, 1000), unix.Chmod(name, 0o6755),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	files := in.Files(api.FileAccess{User: "1000:1000"})
	if _, err := files.Write(t.Context(), name, agent.WriteOptions{}, strings.NewReader("after")); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(name, &st); err != nil || st.Mode&0o7777 != 0o755 || st.Size != 5 {
		t.Errorf("mode %o and %d bytes, want 755 and 5 (%v)", st.Mode&0o7777, st.Size, err)
	}
}
