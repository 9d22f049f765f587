package image

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	erofs "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir)
	must(t, err)
	return s
}

// put writes a file of a machine that exists in a test only.
func put(t *testing.T, root, name, content string, mode os.FileMode) {
	t.Helper()
	at := filepath.Join(root, name)
	must(t, os.MkdirAll(filepath.Dir(at), 0o755))
	must(t, os.WriteFile(at, []byte(content), mode))
	must(t, os.Chmod(at, mode))
}

// otherHost is a store that looks at a machine made of files in a directory.
func otherHost(t *testing.T) (*Store, string) {
	t.Helper()
	root := t.TempDir()
	put(t, root, "usr/bin/sh", "", 0o755)
	put(t, root, "etc/ld.so.cache", "cache", 0o644)
	s := openStore(t, filepath.Join(t.TempDir(), "images"))
	s.host = hostView{root: root, home: filepath.Join(root, "usr/share/cloche")}
	return s, root
}

func resolve(t testing.TB, s *Store, need Need) Rootfs {
	t.Helper()
	r, err := s.Resolve(t.Context(), "host", need)
	must(t, err)
	return r
}

func open(t testing.TB, path string) fs.FS {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	fsys, err := erofs.Open(f)
	must(t, err)
	return fsys
}

// listing is every name in the image.
func listing(t *testing.T, fsys fs.FS) (names []string) {
	t.Helper()
	must(t, fs.WalkDir(fsys, ".", func(name string, _ fs.DirEntry, err error) error {
		names = append(names, name)
		return err
	}))
	return names
}

func TestHostImageOfThisMachine(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "images"))
	r := resolve(t, s, Need{})
	fsck(t, r.Image)
	fsys := open(t, r.Image)
	names := listing(t, fsys)
	for _, name := range names {
		base := filepath.Base(name)
		for _, bad := range []string{"shadow", "gshadow", "private", "sudoers", "machine-id", "ssh", "docker.sock"} {
			if base == bad {
				t.Errorf("%s is in the image", name)
			}
		}
		info, err := fs.Lstat(fsys, name)
		must(t, err)
		if m := info.Mode(); !m.IsRegular() && !m.IsDir() && m&fs.ModeSymlink == 0 {
			t.Errorf("%s has mode %v", name, m)
		} else if m.IsRegular() && m&(fs.ModeSetuid|fs.ModeSetgid|0o022) != 0 {
			t.Errorf("%s has mode %v", name, m)
		} else if m.IsRegular() {
			data, err := fs.ReadFile(fsys, name)
			if err != nil || bytes.Contains(data, []byte("PRIVATE KEY-----")) {
				t.Errorf("%s holds a private key (error %v)", name, err)
			}
		}
	}
	for _, dir := range []string{"root", "home/user", "tmp", "run/lock", "etc/skel", "srv", "var/tmp"} {
		if entries, err := fs.ReadDir(fsys, dir); err != nil || len(entries) != 0 {
			t.Errorf("%s: %d entries, error %v; want an empty directory", dir, len(entries), err)
		}
	}
	for _, name := range []string{"etc/passwd", "etc/group", "etc/hosts", "etc/resolv.conf", "etc/nsswitch.conf"} {
		data, err := fs.ReadFile(fsys, name)
		must(t, err)
		host, err := os.ReadFile("/" + name)
		if err == nil && bytes.Equal(data, host) {
			t.Errorf("%s is this machine's own", name)
		}
	}
	if name, err := os.Hostname(); err == nil && len(name) > 3 {
		if hosts, _ := fs.ReadFile(fsys, "etc/hosts"); strings.Contains(string(hosts), name) {
			t.Errorf("etc/hosts names this machine")
		}
	}
	for _, m := range r.Mounts {
		if !slices.Contains(toolDirs(), strings.TrimPrefix(m.Target, "/")) || m.Source != m.Target {
			t.Errorf("%s is mounted at %s", m.Source, m.Target)
		}
		if info, err := fs.Stat(fsys, m.Target[1:]); err != nil || !info.IsDir() {
			t.Errorf("mount point %s: %v", m.Target, err)
		}
	}
	if home, err := os.UserHomeDir(); err == nil && slices.ContainsFunc(r.Mounts, func(m Mount) bool { return strings.HasPrefix(home+"/", m.Target+"/") }) {
		t.Errorf("home directory %s is visible", home)
	}
	if !strings.Contains(r.Env["PATH"], "/usr/bin") || r.User != "root" || r.MissingHint == "" || !strings.HasPrefix(r.Digest, "sha256:") {
		t.Errorf("resolved to %+v", r)
	}
}

// Programs of images for Python call it python, and adduser wants what is made for it.
func TestHostImageHasPythonByItsShortName(t *testing.T) {
	s, root := otherHost(t)
	put(t, root, "usr/bin/python3", "", 0o755)
	r := resolve(t, s, Need{})
	fsys := open(t, r.Image)
	if target, err := fs.ReadLink(fsys, "opt/cloche/bin/python"); err != nil || target != "/usr/bin/python3" || !strings.HasSuffix(r.Env["PATH"], ":/opt/cloche/bin") {
		t.Errorf("python is %q, %v, with PATH %s", target, err, r.Env["PATH"])
	}
	for _, name := range []string{"etc/skel", "etc/adduser.conf", "etc/pam.d/other"} {
		if _, err := fs.Stat(fsys, name); err != nil {
			t.Error(err)
		}
	}
	// What an older cloche made of the same files is made again.
	older, err := s.load("host")
	must(t, err)
	older.Layout, older.Rootfs.MissingHint = 0, "of an older cloche"
	must(t, s.save("host", older))
	next := openStore(t, s.dir)
	next.host = s.host
	if r := resolve(t, next, Need{}); r.MissingHint != HostHint {
		t.Errorf("the image is still the one that says %q", r.MissingHint)
	}
	put(t, root, "usr/local/bin/python", "", 0o755)
	r = resolve(t, s, Need{})
	if strings.Contains(r.Env["PATH"], namesDir) {
		t.Errorf("the machine has a python, and PATH is %s", r.Env["PATH"])
	}
}

func TestHostImageShowsNoSecrets(t *testing.T) {
	s, root := otherHost(t)
	const secret = "SECRET"
	for name, mode := range map[string]os.FileMode{
		"etc/shadow": 0o644, "etc/hosts": 0o644, "etc/passwd": 0o644, "etc/sudoers": 0o644, "etc/ssh/ssh_host_key": 0o644, "etc/npmrc": 0o644,
		"etc/ssl/private/server.pem": 0o644, "etc/ssl/certs/server.key": 0o644, "etc/ssl/certs/hidden.pem": 0o600,
		"etc/java-17-openjdk/jmx.passwd": 0o644, "home/alice/.netrc": 0o644, "root/.aws": 0o644, "var/run/x": 0o644, "opt/x": 0o644,
	} {
		put(t, root, name, secret, mode)
	}
	put(t, root, "etc/ssl/certs/mixed.pem", "-----BEGIN RSA PRIVATE KEY-----\n"+secret, 0o644)
	put(t, root, "etc/ssl/certs/big.pem", strings.Repeat(secret, maxCopyFile/6+1), 0o644)
	put(t, root, "etc/ssl/certs/ca.pem", "public", 0o644)
	put(t, root, "etc/perl/closed/x", secret, 0o644)
	must(t, os.Chmod(filepath.Join(root, "etc/perl/closed"), 0o700))
	must(t, unix.Mkfifo(filepath.Join(root, "etc/perl/fifo"), 0o666))
	l, err := net.Listen("unix", filepath.Join(root, "etc/perl/s"))
	must(t, err)
	defer l.Close()
	for name, target := range map[string]string{
		"etc/ssl/certs/home.pem": "/home/alice/.netrc", "etc/ssl/certs/up.pem": "../../../root/.aws", "etc/terminfo": "/var/secret",
		"etc/ssl/certs/ok.pem": "/usr/share/ca.pem", "lib": "usr/lib", "lib64": "/srv/lib64",
	} {
		must(t, os.Symlink(target, filepath.Join(root, name)))
	}
	for _, dir := range []string{"usr/local/etc", "usr/local/lib", "usr/people/bob", "usr/share/cloche", "bin"} {
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
	}
	uid := strconv.Itoa(os.Geteuid() + 1) // owns nothing here
	if os.Geteuid() == 0 {
		uid = "1001"
		must(t, os.Chown(filepath.Join(root, "usr/people/bob"), 1001, 1001))
	}
	put(t, root, "etc/passwd", "root:x:0:0::/root:/bin/sh\nbob:x:"+uid+":1::/usr/people/bob:/bin/sh\nsvc:x:1002:1::/usr/bin:/bin/false\n"+secret, 0o644)

	r := resolve(t, s, Need{})
	raw, err := os.ReadFile(r.Image)
	must(t, err)
	if i := bytes.Index(raw, []byte(secret)); i >= 0 {
		t.Errorf("a secret is in the image at %d", i)
	}
	fsys := open(t, r.Image)
	names := listing(t, fsys)
	for _, name := range []string{"etc/shadow", "etc/ssh", "etc/ssl/private", "etc/ssl/certs/home.pem", "etc/ssl/certs/up.pem", "etc/terminfo", "etc/perl/fifo", "etc/perl/s", "etc/perl/closed", "lib64", "home/alice"} {
		if slices.Contains(names, name) {
			t.Errorf("%s is in the image", name)
		}
	}
	for _, name := range []string{"etc/ssl/certs/ca.pem", "etc/ssl/certs/ok.pem", "etc/ld.so.cache", "lib", "bin", "usr"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not in the image", name)
		}
	}
	if want := []Mount{{root + "/usr", "/usr"}, {root + "/bin", "/bin"}}; !slices.Equal(r.Mounts, want) {
		t.Errorf("mounts are %v, want %v", r.Mounts, want)
	}
	want := []string{"/usr/local/etc", "/usr/share/cloche"}
	if os.Geteuid() == 0 {
		want = []string{"/usr/local/etc", "/usr/people/bob", "/usr/share/cloche"}
	}
	if !slices.Equal(r.Masks, want) {
		t.Errorf("masks are %v, want %v", r.Masks, want)
	}
}

func TestSecretNames(t *testing.T) {
	for name, secret := range map[string]bool{
		"private": true, "Private": true, "server.key": true, "SERVER.KEY": true, "a.p12": true, "a.pfx": true, "gshadow-": true, "jmx.passwd.template": true,
		"ca.pem": false, "private.d": false, "keyring": false, "key": false, "a.p12.txt": false, "pass": false,
	} {
		if got := secretName(name); got != secret {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestHostImageIsMadeOnceAndAgainAfterAChange(t *testing.T) {
	s, root := otherHost(t)
	put(t, root, "etc/ssl/certs/ca.pem", "one", 0o644)
	first := resolve(t, s, Need{})
	var before unix.Stat_t
	must(t, unix.Stat(first.Image, &before))
	again := openStore(t, s.dir)
	again.host = s.host
	for _, store := range []*Store{s, again} {
		var now unix.Stat_t
		r := resolve(t, store, Need{MountPoints: []string{"/anywhere"}})
		must(t, unix.Stat(r.Image, &now))
		if now.Ino != before.Ino || r.Digest != first.Digest {
			t.Error("it was made again though nothing changed")
		}
	}
	changes := []func(){
		func() { put(t, root, "etc/ssl/certs/ca.pem", "two!", 0o644) },
		func() { put(t, root, "etc/ssl/certs/new.pem", "new", 0o644) },
		func() { must(t, os.Remove(filepath.Join(root, "etc/ssl/certs/new.pem"))) },
		func() { must(t, os.Mkdir(filepath.Join(root, "sbin"), 0o755)) },
		func() { must(t, os.MkdirAll(filepath.Join(root, "usr/local/go/bin"), 0o755)) },
		func() { must(t, os.MkdirAll(filepath.Join(root, "usr/local/etc"), 0o755)) },
	}
	last := first
	for i, change := range changes {
		change()
		r := resolve(t, again, Need{})
		if r.Digest == last.Digest && slices.Equal(r.Mounts, last.Mounts) && slices.Equal(r.Masks, last.Masks) && r.Env["PATH"] == last.Env["PATH"] {
			t.Errorf("change %d was not seen", i)
		}
		last = r
	}
	must(t, os.Chmod(last.Image, 0o600))
	must(t, os.Truncate(last.Image, 4096))
	if r := resolve(t, s, Need{}); r.Digest != last.Digest {
		t.Errorf("a damaged image was not replaced by its like: %s", r.Digest)
	} else {
		fsck(t, r.Image)
	}
	must(t, os.WriteFile(filepath.Join(s.dir, "host.json"), []byte("{not json"), 0o600))
	resolve(t, openStore(t, s.dir), Need{})
}

func TestStoresAtOnceMakeOneImage(t *testing.T) {
	s, _ := otherHost(t)
	put(t, s.dir, tempPrefix+"left", "by a killed process", 0o600)
	var wg sync.WaitGroup
	found := make([]string, 8)
	for i := range found {
		store := openStore(t, s.dir)
		store.host = s.host
		wg.Go(func() {
			r, err := store.Resolve(t.Context(), "host", Need{})
			if err != nil {
				t.Error(err)
			}
			found[i] = r.Image
		})
	}
	wg.Wait()
	if len(slices.Compact(found)) != 1 {
		t.Errorf("%v", found)
	}
	images, _ := filepath.Glob(filepath.Join(s.dir, "*"+imageSuffix))
	left, _ := filepath.Glob(filepath.Join(s.dir, tempPrefix+"*"))
	if len(images) != 1 || len(left) != 0 {
		t.Errorf("images %v, left %v", images, left)
	}
}

func TestResolveRefusals(t *testing.T) {
	s, root := otherHost(t)
	for _, ref := range []string{"", "debian:12", "Host", "../host", strings.Repeat("x", 10_000)} {
		_, err := s.Resolve(t.Context(), ref, Need{})
		e, ok := errors.AsType[*api.Error](err)
		code := api.CodeInvalid // because it is no reference at all
		if ref == "debian:12" {
			code = api.CodeNotFound
		}
		if !ok || e.Code != code || e.Field != "image" || e.Hint == "" || len(e.Message) > 300 {
			t.Errorf("%.20q: %v", ref, err)
		}
	}
	must(t, os.MkdirAll(filepath.Join(root, "usr/share/there"), 0o755))
	must(t, os.Symlink("there", filepath.Join(root, "usr/share/link")))
	for target, ok := range map[string]bool{
		"/srv/job": true, "/workspace": true, "/usr/share/there": true, "/data/a/b/c": true, "/opt/x": true,
		"/usr/share/missing": false, "/usr/bin/sh": false, "/usr/share/link": false, "/bin/x": false, "relative": false, "/a/../b": false, "/a\x00": false,
		"/etc/passwd": false, "/etc/ld.so.cache/x": false, "/var/run/x": false,
	} {
		_, err := s.Resolve(t.Context(), "host", Need{MountPoints: []string{target}, ReadOnlyRoot: true})
		if e, is := errors.AsType[*api.Error](err); ok != (err == nil) || !ok && (!is || e.Code != api.CodeInvalid || e.Field != "mounts") {
			t.Errorf("mount point %q: %v", target, err)
		}
	}
	r := resolve(t, s, Need{MountPoints: []string{"/deep/er/job", "/srv/job"}, ReadOnlyRoot: true})
	for _, name := range []string{"deep/er/job", "srv/job"} {
		if info, err := fs.Stat(open(t, r.Image), name); err != nil || !info.IsDir() {
			t.Errorf("mount point %s of a read-only root: %v", name, err)
		}
	}
}

func TestAgentImage(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "images"))
	one, two := bytes.Repeat([]byte("one"), 5000), bytes.Repeat([]byte("two"), 5000)
	first, err := s.AgentImage(t.Context(), one)
	must(t, err)
	second, err := s.AgentImage(t.Context(), two)
	must(t, err)
	again, err := openStore(t, s.dir).AgentImage(t.Context(), one)
	must(t, err)
	if first == second || first != again {
		t.Errorf("images are %s, %s and %s", first, second, again)
	}
	fsys := open(t, first)
	got, err := fs.ReadFile(fsys, AgentPath[1:])
	must(t, err)
	info, err := fs.Stat(fsys, AgentPath[1:])
	must(t, err)
	if !bytes.Equal(got, one) || !info.Mode().IsRegular() || info.Mode().Perm() != 0o555 {
		t.Errorf("%d bytes of mode %v", len(got), info.Mode())
	}
	fsck(t, first)

	program := filepath.Join(t.TempDir(), "program")
	must(t, os.WriteFile(program, one, 0o755))
	file, err := s.AgentImageFile(t.Context(), program)
	must(t, err)
	if file != first {
		t.Errorf("the same program has the images %s and %s", file, first)
	}
	must(t, os.WriteFile(program, two, 0o755))
	if file, err := s.AgentImageFile(t.Context(), program); err != nil || file != second {
		t.Errorf("a changed program has image %s (%v), want %s", file, err, second)
	}
	for _, bad := range []string{filepath.Join(program, "x"), filepath.Dir(program), "/dev/null"} {
		if _, err := s.AgentImageFile(t.Context(), bad); err == nil {
			t.Errorf("%s was packed", bad)
		}
	}
	if _, err := s.AgentImage(t.Context(), nil); err == nil {
		t.Error("nothing was packed")
	}
}

func TestWaitingForTheLockEndsWithTheContext(t *testing.T) {
	s, _ := otherHost(t)
	unlock, err := s.lock(t.Context())
	must(t, err)
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := openStore(t, s.dir).Resolve(ctx, "host", Need{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want deadline exceeded", err)
	}
}

// TestWaitingForAnImageEndsWithTheContext: a lock that is not free in time is not taken,
// and it stays with its holder.
func TestWaitingForAnImageEndsWithTheContext(t *testing.T) {
	s := images(t)
	unlock, err := s.oci.lock(t.Context(), "x")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	other := openStore(t, s.dir)
	if _, err := other.oci.lock(ctx, "x"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want canceled", err)
	}
	if !other.oci.busy("x") {
		t.Error("it is not locked any more")
	}
	unlock()
	if other.oci.busy("x") {
		t.Error("it is still locked")
	}
	again, err := other.oci.lock(t.Context(), "x")
	must(t, err)
	again()
}

func TestSweepRemovesWhatNobodyUses(t *testing.T) {
	s, _ := otherHost(t)
	kept := resolve(t, s, Need{})
	var agents []string
	for _, p := range []string{"one", "two", "new"} {
		path, err := s.AgentImage(t.Context(), []byte(p))
		must(t, err)
		agents = append(agents, path)
	}
	old := time.Now().Add(-48 * time.Hour)
	for _, path := range []string{kept.Image, agents[0], agents[1]} {
		must(t, os.Chtimes(path, old, old))
	}
	n, err := s.Sweep(t.Context(), []string{kept.Image, agents[1]}, 24*time.Hour)
	must(t, err)
	images, _ := filepath.Glob(filepath.Join(s.dir, "*"+imageSuffix))
	want := []string{kept.Image, agents[1], agents[2]}
	slices.Sort(want)
	if n != 1 || !slices.Equal(images, want) {
		t.Errorf("%d removed, left %v, want %v", n, images, want)
	}
	if path, err := s.AgentImage(t.Context(), []byte("one")); err != nil || path != agents[0] {
		t.Errorf("a swept image is not made again: %s, %v", path, err)
	}
}

func TestOpenRefusesWhatOthersCanWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "images")
	must(t, os.Mkdir(dir, 0o700))
	must(t, os.Chmod(dir, 0o777))
	if _, err := Open(dir); err == nil {
		t.Error("a directory that everybody can write was taken")
	}
	link := filepath.Join(t.TempDir(), "link")
	must(t, os.Symlink(t.TempDir(), link))
	if _, err := Open(link); err == nil {
		t.Error("a symlink was taken")
	}
	if _, err := Open("relative"); err == nil {
		t.Error("a relative path was taken")
	}
}

func TestListNamesTheHost(t *testing.T) {
	s, _ := otherHost(t)
	if l := s.List(); len(l) != 1 || l[0].Name != "host" || l[0].SizeBytes != 0 || l[0].Digest != "" {
		t.Errorf("before it was made: %+v", l)
	}
	r := resolve(t, s, Need{})
	if l := s.List(); l[0].Digest != r.Digest {
		t.Errorf("after it was made: %+v", l)
	}
}

func BenchmarkResolve(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "images")
	s := openStore(b, dir)
	resolve(b, s, Need{})
	b.Run("daemon", func(b *testing.B) {
		for b.Loop() {
			resolve(b, s, Need{})
		}
	})
	b.Run("new process", func(b *testing.B) {
		for b.Loop() {
			resolve(b, openStore(b, dir), Need{})
		}
	})
	b.Run("agent", func(b *testing.B) {
		program := make([]byte, 8<<20)
		for b.Loop() {
			_, err := s.AgentImage(b.Context(), program)
			must(b, err)
		}
	})
}
