//go:build linux

package guest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
)

func wantCode(t *testing.T, what string, err error, code api.Code, field string) {
	t.Helper()
	e := api.CodeOf(err)
	ce, _ := err.(*api.Error) //nolint:errorlint // the agent's client answers with this very type
	if e != code || ce != nil && ce.Field != field {
		t.Errorf("%s: %v (%+v), want %s of %q", what, err, ce, code, field)
	}
}

func TestToolsDoNotLeaveTheirRoot(t *testing.T) {
	in := boot(t, nil)
	root, beside := toolTree(t)
	ctx := t.Context()
	for _, p := range []string{"../beside/secret", beside + "/secret", root + "/../beside/secret", "out/secret", "abs/secret", "file-out", "proc/etc/passwd", "src/../../beside/secret", root + "x"} {
		at := api.ToolPlace{Root: root, Path: p}
		_, err := in.ReadText(ctx, api.ToolRead{ToolPlace: at})
		wantCode(t, "read "+p, err, api.CodeInvalid, "path")
		_, err = in.Grep(ctx, api.ToolGrep{ToolPlace: at, Pattern: "needle"})
		wantCode(t, "grep "+p, err, api.CodeInvalid, "path")
		_, err = in.EditText(ctx, "", api.ToolEdit{ToolPlace: at, Old: "needle", New: "x"})
		wantCode(t, "edit "+p, err, api.CodeInvalid, "path")
		_, err = in.WriteText(ctx, "", api.ToolWrite{ToolPlace: at, Content: "x"})
		wantCode(t, "write "+p, err, api.CodeInvalid, "path")
	}
	for _, p := range []string{"..", "out", "abs", "proc"} {
		_, err := in.Glob(ctx, api.ToolGlob{ToolPlace: api.ToolPlace{Root: root, Path: p}, Pattern: "**"})
		wantCode(t, "glob "+p, err, api.CodeInvalid, "path")
	}
	for _, r := range []string{"/proc", "/proc/self/root", "/proc/1/root/etc", root + "/proc"} {
		_, err := in.Glob(ctx, api.ToolGlob{ToolPlace: api.ToolPlace{Root: r}, Pattern: "*"})
		if err == nil {
			t.Errorf("root %s: no error", r)
		}
	}
	if _, err := in.Glob(ctx, api.ToolGlob{ToolPlace: api.ToolPlace{Root: "relative"}, Pattern: "*"}); api.CodeOf(err) != api.CodeInvalid {
		t.Errorf("a relative root: %v", err)
	}
	if data, err := os.ReadFile(filepath.Join(beside, "secret")); err != nil || string(data) != "needle of others\n" {
		t.Errorf("beside: %q, %v", data, err)
	}
	if left, err := os.ReadDir(beside); err != nil || len(left) != 1 {
		t.Errorf("beside has %v, %v", left, err)
	}
}

func TestToolRead(t *testing.T) {
	in := boot(t, nil)
	root, _ := toolTree(t)
	var many strings.Builder
	for i := range 12_000 {
		many.WriteString("xy"[i%2:i%2+1] + "\n")
	}
	wide := strings.Repeat("é", api.MaxToolText)
	for name, content := range map[string]string{"many": many.String(), "wide": wide + "\nend", "full": strings.Repeat(strings.Repeat("x", 1023)+"\n", 60), "latin": "caf\xe9\n", "none": ""} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(p string, first, lines int) api.ToolText {
		t.Helper()
		got, err := in.ReadText(t.Context(), api.ToolRead{ToolPlace: api.ToolPlace{Root: root, Path: p}, FirstLine: first, Lines: lines})
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		return got
	}
	for _, tc := range []struct {
		path         string
		first, lines int
		want         api.ToolText
	}{
		{"a.txt", 0, 0, api.ToolText{Content: "one\ntwo\nthree\n", FirstLine: 1, Lines: 3, Size: 14}},
		{root + "/a.txt", 2, 1, api.ToolText{Content: "two\n", FirstLine: 2, Lines: 1, More: true, Size: 14}},
		{"a.txt", 3, 1, api.ToolText{Content: "three\n", FirstLine: 3, Lines: 1, Size: 14}},
		{"a.txt", 9, 1, api.ToolText{FirstLine: 9, Size: 14}},
		{"none", 0, 0, api.ToolText{FirstLine: 1}},
		{"in", 1, 1, api.ToolText{Content: "package main\n", FirstLine: 1, Lines: 1, More: true, Size: 23}},
		{"bin/data", 0, 0, api.ToolText{FirstLine: 1, Binary: true, Size: 9}},
		{"latin", 0, 0, api.ToolText{Content: "caf\uFFFD\n", FirstLine: 1, Lines: 1, Size: 5}},
		{"wide", 2, 5, api.ToolText{Content: "end", FirstLine: 2, Lines: 1, Size: int64(len(wide)) + 4}},
	} {
		tc.want.Path = root + "/" + strings.TrimPrefix(tc.path, root+"/")
		if got := read(tc.path, tc.first, tc.lines); got != tc.want {
			t.Errorf("%s from %d: %+v, want %+v", tc.path, tc.first, got, tc.want)
		}
	}
	if got := read("wide", 1, 5); !got.Cut || !got.More || got.Lines != 1 || got.Content != wide[:api.MaxToolText] {
		t.Errorf("a wide line: cut %v, more %v, %d lines, %d bytes", got.Cut, got.More, got.Lines, len(got.Content))
	}
	if got := read("full", 0, 0); got.Lines != 50 || !got.More || len(got.Content) != api.MaxToolText {
		t.Errorf("as much as may be: %d lines, more %v, %d bytes", got.Lines, got.More, len(got.Content))
	}
	if got := read("many", 0, 0); got.Lines != api.DefaultToolLines || !got.More {
		t.Errorf("by default %d lines, more %v", got.Lines, got.More)
	}
	if got := read("many", 2001, api.MaxToolLines); got.Lines != api.MaxToolLines || got.More || !strings.HasPrefix(got.Content, "x\ny\n") {
		t.Errorf("the rest: %d lines, more %v", got.Lines, got.More)
	}
	for what, r := range map[string]api.ToolRead{
		"lines":      {ToolPlace: api.ToolPlace{Path: "a.txt"}, Lines: api.MaxToolLines + 1},
		"first_line": {ToolPlace: api.ToolPlace{Path: "a.txt"}, FirstLine: -1},
		"path":       {ToolPlace: api.ToolPlace{Path: "src"}},
	} {
		r.Root = root
		_, err := in.ReadText(t.Context(), r)
		wantCode(t, what, err, api.CodeInvalid, what)
	}
	for p, code := range map[string]api.Code{"missing": api.CodeNotFound, "fifo": api.CodeInvalid, "loop": api.CodeInvalid, "": api.CodeInvalid} {
		_, err := in.ReadText(t.Context(), api.ToolRead{ToolPlace: api.ToolPlace{Root: root, Path: p}})
		if api.CodeOf(err) != code {
			t.Errorf("%q: %v, want %s", p, err, code)
		}
	}
}

func TestToolWriteAndEdit(t *testing.T) {
	in := boot(t, nil)
	root, _ := toolTree(t)
	at := func(p string) api.ToolPlace { return api.ToolPlace{Root: root, Path: p} }
	file := func(p string) string {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	w, err := in.WriteText(t.Context(), "123:45", api.ToolWrite{ToolPlace: at("new/dir/f"), Content: "héllo"})
	if err != nil || !w.Created || w.Size != 6 || w.Path != root+"/new/dir/f" || file("new/dir/f") != "héllo" {
		t.Fatalf("%+v, %v", w, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(root+"/new/dir/f", &st); err != nil || st.Uid != 123 || st.Gid != 45 || st.Mode&0o7777 != 0o644 {
		t.Errorf("%+v, %v", st, err)
	}
	w, err = in.WriteText(t.Context(), "123:45", api.ToolWrite{ToolPlace: at("a.txt"), Content: "x x\ny\n"})
	if err != nil || w.Created {
		t.Errorf("%+v, %v", w, err)
	}
	// It keeps its owner and its permissions.
	if err := unix.Stat(root+"/a.txt", &st); err != nil || st.Uid != uint32(os.Getuid()) || st.Mode&0o7777 != 0o640 {
		t.Errorf("%+v, %v", st, err)
	}
	edit := func(e api.ToolEdit) (api.ToolWritten, error) { return in.EditText(t.Context(), "", e) }
	if w, err := edit(api.ToolEdit{ToolPlace: at("a.txt"), Old: "y", New: "zz"}); err != nil || w.Replaced != 1 || w.Line != 2 || w.Size != 7 || file("a.txt") != "x x\nzz\n" {
		t.Errorf("%+v, %v", w, err)
	}
	if w, err := edit(api.ToolEdit{ToolPlace: at("a.txt"), Old: "x", New: "", All: true}); err != nil || w.Replaced != 2 || w.Line != 1 || file("a.txt") != " \nzz\n" {
		t.Errorf("%+v, %v", w, err)
	}
	if err := os.WriteFile(root+"/large", make([]byte, api.MaxToolEdit+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		what  string
		e     api.ToolEdit
		code  api.Code
		field string
	}{
		{"twice", api.ToolEdit{ToolPlace: at("a.txt"), Old: "z", New: "a"}, api.CodeInvalid, "old"},
		{"not there", api.ToolEdit{ToolPlace: at("a.txt"), Old: "q", New: "a"}, api.CodeInvalid, "old"},
		{"nothing", api.ToolEdit{ToolPlace: at("a.txt"), New: "a"}, api.CodeInvalid, "old"},
		{"the same", api.ToolEdit{ToolPlace: at("a.txt"), Old: "z", New: "z"}, api.CodeInvalid, "new"},
		{"a symlink", api.ToolEdit{ToolPlace: at("in"), Old: "needle", New: "z"}, api.CodeInvalid, "path"},
		{"a directory", api.ToolEdit{ToolPlace: at("src"), Old: "needle", New: "z"}, api.CodeInvalid, "path"},
		{"missing", api.ToolEdit{ToolPlace: at("gone"), Old: "needle", New: "z"}, api.CodeNotFound, ""},
		{"large", api.ToolEdit{ToolPlace: at("large"), Old: "needle", New: "z"}, api.CodeTooLarge, ""},
		{"larger than may be", api.ToolEdit{ToolPlace: at("a.txt"), Old: "z", New: strings.Repeat("z", api.MaxToolWrite/2+1), All: true}, api.CodeTooLarge, ""},
	} {
		_, err := edit(tc.e)
		wantCode(t, tc.what, err, tc.code, tc.field)
	}
	_, err = in.WriteText(t.Context(), "", api.ToolWrite{ToolPlace: at("in"), Content: "x"})
	wantCode(t, "write a symlink", err, api.CodeInvalid, "path")
	_, err = in.WriteText(t.Context(), "", api.ToolWrite{ToolPlace: at("fifo"), Content: "x"})
	wantCode(t, "write a fifo", err, api.CodeInvalid, "path")
	_, err = in.WriteText(t.Context(), "", api.ToolWrite{ToolPlace: at("big"), Content: strings.Repeat("x", api.MaxToolWrite+1)})
	wantCode(t, "write too much", err, api.CodeTooLarge, "")
	if left, err := filepath.Glob(root + "/.cloche-*"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestToolGlob(t *testing.T) {
	in := boot(t, nil)
	root, _ := toolTree(t)
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	if err := os.Chtimes(root+"/src/main.go", old, old); err != nil {
		t.Fatal(err)
	}
	glob := func(g api.ToolGlob) (api.ToolFiles, []string) {
		t.Helper()
		g.Root = root
		got, err := in.Glob(t.Context(), g)
		if err != nil {
			t.Fatalf("%s: %v", g.Pattern, err)
		}
		var names []string
		for _, f := range got.Files {
			names = append(names, strings.TrimPrefix(f.Path, root+"/"))
		}
		slices.Sort(names)
		return got, names
	}
	for _, tc := range []struct {
		path, pattern string
		skip          []string
		want          string
	}{
		{"", "*.txt", nil, "a.txt"},
		{"", "*.go", nil, ""},
		{"", "**/*.go", nil, "src/deep/er/x.go src/main.go"},
		{"", "**/*.{go,c}", nil, "src/b.c src/deep/er/x.go src/main.go"},
		{"", "**/*.go", []string{}, "node_modules/m/x.go src/deep/er/x.go src/main.go"},
		{"", "src/**/er/*", nil, "src/deep/er/x.go"},
		{"", "src/**", nil, "src src/b.c src/deep src/deep/er src/deep/er/x.go src/main.go"},
		{"src", "[a-c].?", nil, "src/b.c"},
		{root + "/src", "deep/../*", nil, ""},
		{"", "{in,out,self}", nil, "in out self"},
		{"", "self/*", nil, ""},
	} {
		if tc.pattern == "deep/../*" {
			_, err := in.Glob(t.Context(), api.ToolGlob{ToolPlace: api.ToolPlace{Root: root}, Pattern: tc.pattern})
			wantCode(t, tc.pattern, err, api.CodeInvalid, "pattern")
			continue
		}
		if _, got := glob(api.ToolGlob{ToolPlace: api.ToolPlace{Path: tc.path}, Pattern: tc.pattern, Skip: tc.skip}); strings.Join(got, " ") != tc.want {
			t.Errorf("%s in %q: %q, want %q", tc.pattern, tc.path, got, tc.want)
		}
	}
	got, _ := glob(api.ToolGlob{Pattern: "src/*.{go,c}"})
	if len(got.Files) != 2 || got.Files[1].Path != root+"/src/main.go" || !got.Files[1].ModTime.Equal(old) || got.Files[1].Size != 23 || got.Files[1].Type != api.TypeFile || got.Partial != "" {
		t.Errorf("the newest first: %+v", got)
	}
	if got, _ := glob(api.ToolGlob{Pattern: "src/*.{go,c}", Limit: 1}); len(got.Files) != 1 || got.Files[0].Path != root+"/src/b.c" || got.Partial != api.PartialMatches {
		t.Errorf("one: %+v", got)
	}
	for _, p := range []string{"", "/a", "a{b", "a}b", "[", "..", strings.Repeat("{a,b}", 7), strings.Repeat("x", api.MaxToolPattern+1)} {
		_, err := in.Glob(t.Context(), api.ToolGlob{ToolPlace: api.ToolPlace{Root: root}, Pattern: p})
		wantCode(t, "pattern "+p, err, api.CodeInvalid, "pattern")
	}
	_, err := in.Glob(t.Context(), api.ToolGlob{ToolPlace: api.ToolPlace{Root: root}, Pattern: "*", Limit: api.MaxToolGlob + 1})
	wantCode(t, "limit", err, api.CodeInvalid, "limit")
}

func TestToolGrep(t *testing.T) {
	in := boot(t, nil)
	root, _ := toolTree(t)
	if err := os.WriteFile(root+"/huge", []byte(strings.Repeat("needle\n", api.MaxToolFile/7+1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/wide", []byte(strings.Repeat("é", 600)+"needle"), 0o600); err != nil {
		t.Fatal(err)
	}
	grep := func(g api.ToolGrep) (api.ToolLines, string) {
		t.Helper()
		g.Root = root
		got, err := in.Grep(t.Context(), g)
		if err != nil {
			t.Fatalf("%s: %v", g.Pattern, err)
		}
		var all []string
		for _, m := range got.Matches {
			all = append(all, fmt.Sprintf("%s:%d:%s", strings.TrimPrefix(m.Path, root+"/"), m.Line, m.Text))
		}
		return got, strings.Join(all, "|")
	}
	got, _ := grep(api.ToolGrep{Pattern: "needle"})
	if len(got.Binary) != 1 || got.Binary[0] != root+"/bin/data" || len(got.Unread) != 1 || got.Unread[0] != root+"/huge" || got.Partial != "" || got.Searched != 6 {
		t.Errorf("%+v", got)
	}
	for _, tc := range []struct {
		g    api.ToolGrep
		want string
	}{
		{api.ToolGrep{Pattern: "needle", Include: "*.go"}, "src/deep/er/x.go:1:needle needle|src/main.go:2:// needle"},
		{api.ToolGrep{Pattern: "needle", Include: "src/*.{go,c}"}, "src/b.c:1:int needle;|src/main.go:2:// needle"},
		{api.ToolGrep{ToolPlace: api.ToolPlace{Path: "src"}, Pattern: "^NEEDLE", IgnoreCase: true}, "src/deep/er/x.go:1:needle needle"},
		{api.ToolGrep{Pattern: "needle$", Include: "crlf"}, "crlf:2:needle"},
		{api.ToolGrep{Pattern: ".", Fixed: true}, ""},
		{api.ToolGrep{ToolPlace: api.ToolPlace{Path: "in"}, Pattern: "needle"}, "in:2:// needle"},
		{api.ToolGrep{Pattern: "needle", Include: "**/x.go", Skip: []string{"deep"}}, "node_modules/m/x.go:1:needle"},
	} {
		if _, got := grep(tc.g); got != tc.want {
			t.Errorf("%+v: %q, want %q", tc.g, got, tc.want)
		}
	}
	if got, _ := grep(api.ToolGrep{Pattern: "needle", Include: "wide"}); len(got.Matches) != 1 || !got.Matches[0].Cut || got.Matches[0].Text != strings.Repeat("é", api.MaxToolShown) {
		t.Errorf("a wide line: %+v", got)
	}
	if got, _ := grep(api.ToolGrep{Pattern: "needle", Limit: 2}); len(got.Matches) != 2 || got.Partial != api.PartialMatches {
		t.Errorf("two: %+v", got)
	}
	for _, p := range []string{"", "(", "(?=x)", `(a)\1`, "(x{1000}){1000}", strings.Repeat("x", api.MaxToolPattern+1)} {
		_, err := in.Grep(t.Context(), api.ToolGrep{ToolPlace: api.ToolPlace{Root: root}, Pattern: p})
		wantCode(t, "pattern "+p, err, api.CodeInvalid, "pattern")
	}
	// Who asked and went away is not searched for.
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.Grep(gone, api.ToolGrep{ToolPlace: api.ToolPlace{Root: root}, Pattern: "x"}); api.CodeOf(err) != api.CodeCanceled {
		t.Errorf("%v", err)
	}
}

// toolTree is a directory for tools, and one beside it into which they must not come.
func toolTree(t *testing.T) (root, beside string) {
	t.Helper()
	top := t.TempDir()
	root, beside = filepath.Join(top, "root"), filepath.Join(top, "beside")
	for name, content := range map[string]string{
		"root/a.txt": "one\ntwo\nthree\n", "root/src/main.go": "package main\n// needle\n", "root/src/deep/er/x.go": "needle needle\n",
		"root/src/b.c": "int needle;\n", "root/bin/data": "a\x00needle\n", "root/node_modules/m/x.go": "needle\n", "root/crlf": "x\r\nneedle\r\n",
		"beside/secret": "needle of others\n",
	} {
		p := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"out": "../beside", "abs": beside, "file-out": "../beside/secret", "loop": "loop", "in": "src/main.go", "self": ".", "proc": "/proc/self/root",
	} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return root, beside
}
