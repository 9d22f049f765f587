//go:build linux

package guest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
)

func (in *inside) read(t *testing.T, path string) string {
	t.Helper()
	r, _, err := in.ReadFile(t.Context(), path, 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestFiles(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	big := make([]byte, 5<<20+123)
	rand.NewChaCha8([32]byte{1}).Read(big)
	for _, c := range []struct{ name, content string }{
		{"empty", ""}, {"small", "hello"}, {"big", string(big)}, {"näme", "u"}, {"bytes\xff\xfe", "raw"}, {strings.Repeat("n", 255), "long"},
	} {
		p := dir + "/" + c.name
		info, err := in.WriteFile(t.Context(), p, agent.WriteOptions{Mode: 0o4750}, strings.NewReader(c.content))
		if err != nil {
			t.Fatal(err)
		}
		if info.Size != int64(len(c.content)) || info.Mode != 0o4750 || info.Type != api.TypeFile {
			t.Errorf("%q: %+v", c.name, info)
		}
		if got := in.read(t, p); got != c.content {
			t.Errorf("%q: %d bytes came back", c.name, len(got))
		}
		if on, err := os.ReadFile(p); err != nil || string(on) != c.content {
			t.Errorf("%q: %v", c.name, err)
		}
	}
	r, info, err := in.ReadFile(t.Context(), dir+"/big", 1000, 300_000)
	if err != nil || info.Size != int64(len(big)) {
		t.Fatal(info, err)
	}
	if part, err := io.ReadAll(r); err != nil || !bytes.Equal(part, big[1000:301_000]) {
		t.Errorf("%d bytes, %v", len(part), err)
	}
	r.Close()
	st, err := in.Stat(t.Context(), dir+"/bytes\xff\xfe")
	if err != nil || string(st.NameBytes) != "bytes\xff\xfe" || st.Name != "bytes\uFFFD" {
		t.Errorf("%+v, %v", st, err)
	}
	left, _ := filepath.Glob(dir + "/.cloche-*")
	if len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestWriteIsWholeOrNotAtAll(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/f", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	// An upload whose sender has gone ends in io.ErrUnexpectedEOF.
	for _, broken := range []error{errors.New("broken"), io.ErrUnexpectedEOF} {
		if _, err := in.WriteFile(t.Context(), dir+"/f", agent.WriteOptions{}, io.MultiReader(strings.NewReader(strings.Repeat("new", 200_000)), readerError{broken})); !errors.Is(err, broken) {
			t.Fatalf("got %v, want %v", err, broken)
		}
	}
	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	go func() { pw.Write([]byte("half")); cancel(); pw.CloseWithError(broken) }()
	if _, err := in.WriteFile(ctx, dir+"/f", agent.WriteOptions{}, pr); err == nil {
		t.Fatal("a canceled write succeeded")
	}
	for end := time.Now().Add(time.Minute); ; {
		left, _ := filepath.Glob(dir + "/.cloche-*")
		if len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("left behind: %v", left)
		}
	}
	if data, err := os.ReadFile(dir + "/f"); err != nil || string(data) != "old" {
		t.Fatalf("got %.20q, %v", data, err)
	}
	// Its mode stays when none is asked for, and a link's end is written.
	if err := os.Symlink("f", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	if _, err := in.WriteFile(t.Context(), dir+"/link", agent.WriteOptions{}, strings.NewReader("new")); err != nil {
		t.Fatal(err)
	}
	st, err := in.Stat(t.Context(), dir+"/f")
	if err != nil || st.Mode != 0o600 || in.read(t, dir+"/f") != "new" {
		t.Fatalf("%+v, %v", st, err)
	}
	if st, err := in.Stat(t.Context(), dir+"/link"); err != nil || st.Type != api.TypeSymlink || st.LinkTarget != "f" {
		t.Fatalf("%+v, %v", st, err)
	}
	if _, err := in.WriteFile(t.Context(), "/dev/null", agent.WriteOptions{}, strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	if st, err := in.Stat(t.Context(), "/dev/null"); err != nil || st.Type != api.TypeOther {
		t.Fatalf("/dev/null was replaced: %+v, %v", st, err)
	}
}

type readerError struct{ err error }

func (r readerError) Read([]byte) (int, error) { return 0, r.err }

func TestFileErrors(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	os.Mkdir(dir+"/d", 0o755)
	os.WriteFile(dir+"/d/f", nil, 0o644)
	os.Symlink("/proc/1/mem", dir+"/mem")
	os.Symlink("/proc/self/fd/0", dir+"/fd")
	unix.Mkfifo(dir+"/fifo", 0o644)
	read := func(p string) error {
		r, _, err := in.ReadFile(within(t, time.Minute), p, 0, -1)
		if err == nil {
			_, err = io.ReadAll(r)
			r.Close()
		}
		return err
	}
	write := func(p string) error {
		_, err := in.WriteFile(within(t, time.Minute), p, agent.WriteOptions{}, strings.NewReader("x"))
		return err
	}
	ctx := t.Context()
	_, badCursor := in.List(ctx, "/", "!", 1)
	_, badList := in.List(ctx, dir+"/d/f", "", 1)
	for name, c := range map[string]struct {
		err  error
		code api.Code
	}{
		"read missing":     {read(dir + "/none"), api.CodeNotFound},
		"read directory":   {read(dir), api.CodeInvalid},
		"read relative":    {read("etc/passwd"), api.CodeInvalid},
		"read NUL":         {read("/etc\x00"), api.CodeInvalid},
		"read FIFO":        {read(dir + "/fifo"), api.CodeInvalid},
		"read the agent":   {read(dir + "/mem"), api.CodeState},
		"read its files":   {read(dir + "/fd"), api.CodeInvalid},
		"read environ":     {read("/proc/self/environ"), api.CodeState},
		"write directory":  {write(dir + "/d"), api.CodeInvalid},
		"write in missing": {write(dir + "/none/f"), api.CodeNotFound},
		"write the agent":  {write(dir + "/mem"), api.CodeState},
		"write through fd": {write(dir + "/fd/x"), api.CodeInvalid},
		"list file":        {badList, api.CodeInvalid},
		"bad cursor":       {badCursor, api.CodeInvalid},
		"remove full":      {in.Remove(ctx, dir+"/d", false), api.CodeState},
		"remove missing":   {in.Remove(ctx, dir+"/none", true), api.CodeNotFound},
		"remove root":      {in.Remove(ctx, "//", true), api.CodeInvalid},
		"move missing":     {in.Move(ctx, dir+"/none", dir+"/x"), api.CodeNotFound},
		"move relative":    {in.Move(ctx, dir+"/d", "x"), api.CodeInvalid},
		"directory a file": {in.MakeDir(ctx, dir+"/d/f", 0, ""), api.CodeExists},
	} {
		if api.CodeOf(c.err) != c.code {
			t.Errorf("%s: %v (%s), want %s", name, c.err, api.CodeOf(c.err), c.code)
		}
	}
	if err := in.MakeDir(ctx, dir+"/a/b/c", 0o700, "77:78"); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/a", "/a/b", "/a/b/c"} {
		if st, err := in.Stat(ctx, dir+p); err != nil || st.UID != 77 || st.GID != 78 {
			t.Errorf("%s: %+v, %v", p, st, err)
		}
	}
	if err := in.Move(ctx, dir+"/a", dir+"/z"); err != nil {
		t.Fatal(err)
	}
	if err := in.Remove(ctx, dir+"/z", true); err != nil {
		t.Fatal(err)
	}
}

func TestListPages(t *testing.T) {
	in := boot(t, nil)
	dir := t.TempDir()
	var want []string
	for i := range 57 {
		n := string(rune('a'+i%26)) + strings.Repeat("x", i) + "\xff"
		want = append(want, n)
		os.WriteFile(dir+"/"+n, nil, 0o644)
	}
	slices.Sort(want)
	var got []string
	for cursor := ""; ; {
		l, err := in.List(t.Context(), dir, cursor, 10)
		if err != nil || len(l.Files) > 10 {
			t.Fatal(len(l.Files), err)
		}
		for _, f := range l.Files {
			got = append(got, string(f.NameBytes))
		}
		if cursor = l.Next; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("got %q", got)
	}
}

func TestTarThereAndBack(t *testing.T) {
	in := boot(t, nil)
	src, dst := t.TempDir(), t.TempDir()
	in.run(t, "cd "+src+" && mkdir -p d/e && echo one >d/one && ln d/one d/two && ln -s /etc/passwd abs && ln -s ../x d/rel && chmod 4751 d/one && chmod 1777 d/e && mkfifo fifo && touch -d @1000 d/one d/e && head -c 3000000 /dev/urandom >big && printf x >$(printf 'raw\\377')")
	var buf bytes.Buffer
	rep, err := in.TarOut(t.Context(), src, api.TarOutOptions{}, &buf)
	if err != nil || rep.Entries != 8 || len(rep.Skipped) != 1 || rep.Skipped[0].Path != "fifo" {
		t.Fatalf("%+v, %v", rep, err)
	}
	rep, err = in.TarIn(t.Context(), dst+"/made/here", api.TarInOptions{}, bytes.NewReader(buf.Bytes()))
	if err != nil || rep.Entries != 8 {
		t.Fatalf("%+v, %v", rep, err)
	}
	list := "find . ! -name fifo -printf '%p %M %U %l %T@ %n\\n' | grep -v '^\\. ' | sort; cat big | md5sum"
	a, b := in.run(t, "cd "+src+" && "+list), in.run(t, "cd "+dst+"/made/here && "+list)
	// The time of a link itself is not kept.
	if clean := func(s string) string {
		var lines []string
		for l := range strings.Lines(s) {
			if !strings.Contains(l, " lrwx") {
				lines = append(lines, l)
			}
		}
		return strings.Join(lines, "")
	}; clean(a) != clean(b) {
		t.Fatalf("there:\n%s\nback:\n%s", a, b)
	}
	if got := in.run(t, "readlink "+dst+"/made/here/abs"); got != "/etc/passwd" {
		t.Fatalf("got %q", got)
	}
	buf.Reset()
	if _, err := in.TarOut(t.Context(), src+"/d/one", api.TarOutOptions{}, &buf); err != nil {
		t.Fatal(err)
	}
	if h, err := tar.NewReader(&buf).Next(); err != nil || h.Name != "one" {
		t.Fatalf("%+v, %v", h, err)
	}
}

func TestTarStaysInside(t *testing.T) {
	in := boot(t, nil)
	for name, entries := range map[string][]tar.Header{
		"absolute":          {{Name: "/tmp/evil", Typeflag: tar.TypeReg}},
		"dots":              {{Name: "a/../../evil", Typeflag: tar.TypeReg}},
		"link then file":    {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/evil", Typeflag: tar.TypeReg}},
		"absolute link":     {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/outside"}, {Name: "l/evil", Typeflag: tar.TypeReg}},
		"hard link out":     {{Name: "h", Typeflag: tar.TypeLink, Linkname: "../outside/f"}},
		"hard link by link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "l/f"}},
		"directory by link": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l/d", Typeflag: tar.TypeDir, Mode: 0o777}},
		"mode by link":      {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../outside"}, {Name: "l", Typeflag: tar.TypeDir, Mode: 0o777}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			os.Mkdir(dir+"/outside", 0o700)
			os.WriteFile(dir+"/outside/f", []byte("f"), 0o600)
			os.Mkdir(dir+"/in", 0o755)
			var buf bytes.Buffer
			w := tar.NewWriter(&buf)
			for _, h := range entries {
				w.WriteHeader(&h)
			}
			w.Close()
			_, err := in.TarIn(t.Context(), dir+"/in", api.TarInOptions{}, &buf)
			if api.CodeOf(err) != api.CodeInvalid && api.CodeOf(err) != api.CodeExists {
				t.Errorf("got %v", err)
			}
			if got := in.run(t, "cd "+dir+"/outside && find . | sort | tr '\\n' ' '; stat -c %a . ; stat -c %h f"); got != ". ./f 700\n1" {
				t.Errorf("outside: %q", got)
			}
		})
	}
}

func TestTarThatIsNone(t *testing.T) {
	in := boot(t, nil)
	if _, err := in.TarIn(t.Context(), t.TempDir(), api.TarInOptions{}, strings.NewReader(strings.Repeat("no tar ", 500))); api.CodeOf(err) != api.CodeInvalid {
		t.Fatalf("got %v", err)
	}
}
