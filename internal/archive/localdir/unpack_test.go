package localdir

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
)

type entry struct {
	name, content, link string
	kind                byte
	mode                int64
}

func archive(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range entries {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if e.mode == 0 {
			e.mode = 0o644
		}
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Linkname: e.link, Mode: e.mode, Size: int64(len(e.content)), ModTime: time.Unix(1e9, 0)}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// unpackInto unpacks below a directory that has a neighbour to attack.
func unpackInto(t testing.TB, data []byte, limit int64) (dst, outside string, u *Unpacker, err error) {
	t.Helper()
	base := t.TempDir()
	dst, outside = filepath.Join(base, "dst"), filepath.Join(base, "victim")
	if err := os.WriteFile(outside, []byte("intact"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dst, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u = &Unpacker{Root: root, MaxBytes: limit}
	return dst, outside, u, u.Unpack(bytes.NewReader(data))
}

func TestUnpack(t *testing.T) {
	data := archive(t,
		entry{name: "./", kind: tar.TypeDir, mode: 0o700},
		entry{name: "ro/", kind: tar.TypeDir, mode: 0o555},
		entry{name: "ro/run.sh", content: "#!/bin/sh\n", mode: 0o4755},
		entry{name: "deep/er/file", content: "x"},
		entry{name: "deep/er/up", kind: tar.TypeSymlink, link: "../../ro"},
		entry{name: "copy", kind: tar.TypeLink, link: "deep/er/file"},
	)
	dst, _, u, err := unpackInto(t, data, 1<<20)
	if err != nil || len(u.Report.Skipped) != 0 {
		t.Fatalf("unpack: %v, skipped %v", err, u.Report.Skipped)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dst, "ro"), 0o755) }) // so that it can be removed
	info, err := os.Stat(filepath.Join(dst, "ro", "run.sh"))
	if err != nil || info.Mode() != 0o755 || !info.ModTime().Equal(time.Unix(1e9, 0)) {
		t.Errorf("run.sh: %v, %v; want mode 0755 without set-id and its own time", info, err)
	}
	if info, err := os.Stat(filepath.Join(dst, "ro")); err != nil || info.Mode().Perm() != 0o555 {
		t.Errorf("ro: %v, %v", info, err)
	}
	for _, name := range []string{"copy", "deep/er/file"} {
		if b, err := os.ReadFile(filepath.Join(dst, name)); err != nil || string(b) != "x" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if got, err := os.Readlink(filepath.Join(dst, "deep/er/up")); err != nil || got != filepath.FromSlash("../../ro") {
		t.Errorf("up: %q, %v", got, err)
	}
}

func TestUnpackOverwrites(t *testing.T) {
	data := archive(t, entry{name: "f", content: "old"}, entry{name: "f", content: "new"})
	dst, _, _, err := unpackInto(t, data, 1<<20)
	if b, rerr := os.ReadFile(filepath.Join(dst, "f")); err != nil || rerr != nil || string(b) != "new" {
		t.Errorf("f: %q, %v, %v", b, err, rerr)
	}
}

func TestUnpackIsConfined(t *testing.T) {
	for name, entries := range map[string][]entry{
		"parent":            {{name: "../victim", content: "pwned"}},
		"deep parent":       {{name: "a/../../victim", content: "pwned"}},
		"absolute":          {{name: "/etc/cloche-Unpacker-test", content: "pwned"}},
		"link up":           {{name: "l", kind: tar.TypeSymlink, link: "../victim"}, {name: "l", content: "pwned"}},
		"link dir up":       {{name: "l", kind: tar.TypeSymlink, link: ".."}, {name: "l/victim", content: "pwned"}},
		"absolute link":     {{name: "l", kind: tar.TypeSymlink, link: "/etc"}, {name: "l/cloche-Unpacker-test", content: "pwned"}},
		"hard link up":      {{name: "h", kind: tar.TypeLink, link: "../victim"}, {name: "h", content: "pwned"}},
		"hard link to link": {{name: "l", kind: tar.TypeSymlink, link: "x"}, {name: "h", kind: tar.TypeLink, link: "l"}},
		"two links": {
			{name: "a/b/", kind: tar.TypeDir, mode: 0o755}, {name: "a/b/root", kind: tar.TypeSymlink, link: "../.."},
			{name: "out", kind: tar.TypeSymlink, link: "a/b/root/../victim"},
		},
		"link through link": {
			{name: "a/b/", kind: tar.TypeDir, mode: 0o755}, {name: "a/b/root", kind: tar.TypeSymlink, link: "../.."},
			{name: "a/b/root/out", kind: tar.TypeSymlink, link: "../../victim"},
		},
		"device":     {{name: "null", kind: tar.TypeChar}},
		"pipe":       {{name: "pipe", kind: tar.TypeFifo}},
		"empty link": {{name: "e", kind: tar.TypeSymlink, link: "./../victim"}},
	} {
		t.Run(name, func(t *testing.T) {
			dst, victim, u, err := unpackInto(t, archive(t, entries...), 1<<20)
			checkConfined(t, dst, victim)
			if err == nil && len(u.Report.Skipped) == 0 {
				t.Error("nothing was refused and nothing was left out")
			}
			for _, s := range u.Report.Skipped {
				if s.Path == "" || s.Reason == "" {
					t.Errorf("left out without name or reason: %+v", s)
				}
			}
		})
	}
}

// checkConfined asserts that nothing outside changed and that no link in the
// copy leads out.
func checkConfined(t *testing.T, dst, victim string) {
	t.Helper()
	if b, err := os.ReadFile(victim); err != nil || string(b) != "intact" {
		t.Errorf("the file outside: %q, %v", b, err)
	}
	if _, err := os.Lstat("/etc/cloche-Unpacker-test"); err == nil {
		t.Error("a file was made in /etc")
	}
	if got, err := os.ReadDir(filepath.Dir(dst)); err != nil || len(got) != 2 {
		t.Errorf("beside the copy: %v, %v", got, err)
	}
	err := filepath.WalkDir(dst, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return err
		}
		real, err := filepath.EvalSymlinks(p)
		if err == nil && real != dst && !strings.HasPrefix(real, dst+string(filepath.Separator)) {
			t.Errorf("%s leads to %s", p, real)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Links that were in the directory before are not followed either.
func TestUnpackFollowsNoSymlink(t *testing.T) {
	for what, e := range map[string]entry{
		"a file below a link":      {name: "there/x", content: "pwned"},
		"a directory over a link":  {name: "there", kind: tar.TypeDir, mode: 0o777},
		"a directory below a link": {name: "there/d", kind: tar.TypeDir},
		"a hard link through one":  {name: "h", kind: tar.TypeLink, link: "there/secret"},
		"a hard link to one":       {name: "h", kind: tar.TypeLink, link: "file"},
		"a hard link to nothing":   {name: "h", kind: tar.TypeLink, link: "nothing"},
		"a file over a directory":  {name: "dir", content: "x"},
		"a file over a link":       {name: "file", content: "x"},
	} {
		t.Run(what, func(t *testing.T) {
			dir, outside := t.TempDir(), t.TempDir()
			if err := errors.Join(
				os.Chmod(outside, 0o700), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o600),
				os.Symlink(outside, filepath.Join(dir, "there")), os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "file")),
				os.Mkdir(filepath.Join(dir, "dir"), 0o700),
			); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			u := &Unpacker{Root: root, MaxBytes: 1 << 20}
			_ = u.Unpack(bytes.NewReader(archive(t, e)))
			left, err := os.ReadDir(outside)
			if err != nil || len(left) != 1 {
				t.Errorf("outside there are %v, %v", left, err)
			}
			if b, err := os.ReadFile(filepath.Join(outside, "secret")); err != nil || string(b) != "secret" {
				t.Errorf("the file outside is %q, %v", b, err)
			}
			if info, err := os.Stat(outside); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
				t.Errorf("the directory outside is %v, %v", info, err)
			}
		})
	}
}

func TestUnpackIsBounded(t *testing.T) {
	_, _, _, err := unpackInto(t, archive(t, entry{name: "a", content: "12345"}, entry{name: "b", content: "12345"}), 9)
	if api.CodeOf(err) != api.CodeTooLarge {
		t.Errorf("10 bytes where 9 are allowed: %v", err)
	}
	data := archive(t, entry{name: "a", content: strings.Repeat("x", 4096)})
	if _, _, _, err := unpackInto(t, data[:2048], 1<<20); err == nil {
		t.Error("an archive that is cut off is taken for whole")
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(archive(f, entry{name: "a/b", content: "x"}, entry{name: "l", kind: tar.TypeSymlink, link: "a"}))
	f.Add(archive(f, entry{name: "../x", content: "x"}, entry{name: "h", kind: tar.TypeLink, link: "a"}))
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dst, victim, _, _ := unpackInto(t, data, 1<<16)
		_ = filepath.WalkDir(dst, func(p string, d fs.DirEntry, _ error) error { // what it made unreadable must be removable
			if d != nil && d.IsDir() {
				_ = os.Chmod(p, 0o700)
			}
			return nil
		})
		checkConfined(t, dst, victim)
	})
}

func TestPackThenUnpack(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs links and modes: this platform has neither")
	}
	src := t.TempDir()
	for name, content := range map[string]string{"a": "alpha", "d/b": "beta", "d/\xff": "raw name", "\xfe/x": "raw dir"} {
		p := filepath.Join(src, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("d/b", filepath.Join(src, "l")), os.Symlink("/etc", filepath.Join(src, "out"))); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	var report api.TarReport
	if err := Pack(&b, src, nil, &report); err != nil || report.Bytes != 24 {
		t.Fatalf("Pack: %v, %+v", err, report)
	}
	dst, _, u, err := unpackInto(t, b.Bytes(), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"a": "alpha", "d/b": "beta", "d/\xff": "raw name", "\xfe/x": "raw dir", "l": "beta"} {
		if got, err := os.ReadFile(filepath.Join(dst, name)); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", name, got, err)
		}
	}
	if len(u.Report.Skipped) != 1 || u.Report.Skipped[0].Path != "out" {
		t.Errorf("left out %v, want the link to /etc", u.Report.Skipped)
	}
}
