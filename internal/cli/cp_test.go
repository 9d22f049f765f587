package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCopyIn(t *testing.T) {
	f := newFake(t)
	f.files["/workspace"], f.files["/tmp"], f.files["/link"] = "<dir>", "<dir>", "-> tmp"
	home := f.listen()
	dir := shortDir(t)
	file := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(file, []byte("alpha"), 0o600); err != nil {
		t.Fatal(err)
	}
	for dst, want := range map[string]string{
		"box:": "/workspace/a.txt", "box:b": "/workspace/b", "box:/tmp": "/tmp/a.txt", "box:/tmp/": "/tmp/a.txt",
		"box:/tmp/c": "/tmp/c", "box:../x": "/x", "box:/link": "/link/a.txt", "box:/\xff": "/\xff",
	} {
		f.mu.Lock()
		delete(f.files, want)
		f.mu.Unlock()
		got := runCLI(t, homeEnv(home), nil, nil, "cp", file, dst)
		f.mu.Lock()
		if got.status != 0 || f.files[want] != "alpha" {
			t.Errorf("cp a.txt %q: %+v; %s is %q", dst, got, want, f.files[want])
		}
		delete(f.files, want)
		f.mu.Unlock()
	}
	for _, args := range [][]string{
		{"a", "b"}, {"box:a", "box:b"}, {filepath.Join(dir, "none"), "box:"}, {file, "box:/none/"}, {"/dev/null", "box:"}, {file}, {"-", "box:"},
	} {
		if got := runCLI(t, homeEnv(home), nil, nil, append([]string{"cp"}, args...)...); got.status != 125 || !strings.HasPrefix(got.err, "cloche: ") {
			t.Errorf("cp %q: %+v, want an error", args, got)
		}
	}
}

func TestCopyDirIn(t *testing.T) {
	f := newFake(t)
	f.files["/workspace"] = "<dir>"
	home := f.listen()
	dir := filepath.Join(shortDir(t), "src")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "a"), []byte("alpha"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{"src box:": "/workspace/src", "src/. box:": "/workspace", "src box:/new": "/new"} {
		src, dst, _ := strings.Cut(args, " ")
		got := runCLI(t, homeEnv(home), nil, nil, "cp", filepath.Dir(dir)+"/"+src, dst)
		asked := f.asked("PUT /v1/sandboxes/sb-1/tar?path=" + strings.ReplaceAll(want, "/", "%2F"))
		tr := tar.NewReader(bytes.NewReader(f.tarIn))
		if h, err := tr.Next(); got.status != 0 || !asked || err != nil || h.Name != "a" {
			t.Errorf("cp %s: %+v, %v, %v, asked %v", args, got, h, err, f.requests)
		}
	}
	got := runCLI(t, homeEnv(home), strings.NewReader("a tar stream"), nil, "cp", "-", "box:/in")
	if got.status != 0 || string(f.tarIn) != "a tar stream" {
		t.Errorf("cp -: %+v, sent %q", got, f.tarIn)
	}
}

func TestCopyOut(t *testing.T) {
	f := newFake(t)
	f.files["/workspace/a"], f.files["/workspace/l"], f.files["/loop"], f.files["/d"] = "alpha", "-> a", "-> loop", "<dir>"
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, h := range []*tar.Header{{Name: "x/y", Typeflag: tar.TypeReg, Mode: 0o644, Size: 3}, {Name: "bad", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			_, _ = io.WriteString(w, "why")
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.tarOut = packed.Bytes()
	home := f.listen()
	dir := shortDir(t)
	cp := func(src, dst string) result { t.Helper(); return runCLI(t, homeEnv(home), nil, nil, "cp", src, dst) }
	wantFile := func(name, want string) {
		t.Helper()
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("%s is %q, %v; want %q", name, got, err, want)
		}
	}
	if got := cp("box:a", dir); got.status != 0 {
		t.Errorf("%+v", got)
	}
	wantFile("a", "alpha")
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode() != 0o640 {
		t.Errorf("mode of the copy: %v, %v", info.Mode(), err)
	}
	if got := cp("box:l", filepath.Join(dir, "named")); got.status != 0 {
		t.Errorf("%+v", got)
	}
	wantFile("named", "alpha")
	for _, src := range []string{"box:/loop", "box:/none"} {
		if got := cp(src, filepath.Join(dir, "named")); got.status != 125 {
			t.Errorf("%s: %+v", src, got)
		}
	}
	wantFile("named", "alpha")
	got := cp("box:/d", dir)
	if got.status != 0 || !strings.Contains(got.err, "left out bad") {
		t.Errorf("%+v", got)
	}
	wantFile("d/x/y", "why")
	if got := cp("box:/d/.", filepath.Join(dir, "fresh")); got.status != 0 {
		t.Errorf("%+v", got)
	}
	wantFile("fresh/x/y", "why")
	if got := cp("box:/d", "-"); got.out != string(f.tarOut) {
		t.Errorf("cp to -: %d bytes, %s", len(got.out), got.err)
	}
	got = runCLI(t, homeEnv(home), nil, nil, "cp", "--max-size", "2", "box:/d", filepath.Join(dir, "small"))
	if got.status != 125 || !strings.Contains(got.err, "--max-size") {
		t.Errorf("over the limit: %+v", got)
	}
	have, err := os.ReadDir(dir)
	names := []string{}
	for _, e := range have {
		names = append(names, e.Name())
	}
	if want := []string{"a", "d", "fresh", "named", "small"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("the directory holds %v, want %v: a partial copy was left", names, want)
	}
}

// brokenWriter is an output whose reader went away.
type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
