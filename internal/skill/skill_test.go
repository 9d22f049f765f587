//go:build linux

package skill_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/skill"
)

const tenant = "ws-9d14934957e7ea8dcfa33291"

func code(t *testing.T, what string, err error, want api.Code) {
	t.Helper()
	if got := api.CodeOf(err); got != want {
		t.Errorf("%s: code %q of %v, want %q", what, got, err, want)
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// dirOf is where the skills of the tenant lie.
func dirOf(s *skill.Store) string { return filepath.Join(s.Base(), "tenants", tenant) }

// put writes files below a directory, by their paths.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSkillsLife(t *testing.T) {
	ctx, s := t.Context(), skill.Open(t.TempDir())
	if l := must[api.SkillList](t)(s.List(ctx, tenant)); len(l.Skills) != 0 {
		t.Fatalf("skills of nobody: %v", l)
	}
	_, err := s.Get(ctx, tenant, "pdf")
	code(t, "get of none", err, api.CodeNotFound)

	made := must[api.Skill](t)(s.Create(ctx, tenant, api.SkillSpec{
		Name: "pdf", DisplayName: "PDF: tools", Description: "Reads \"PDF\" files,\nand writes # them", Instructions: "\n# Use\n\n---\nCall it.\n",
	}, nil, 0))
	if made.Tenant != tenant || made.Entry != "SKILL.md" || made.Dir != "pdf" || made.DisplayName != "PDF: tools" ||
		made.Description != "Reads \"PDF\" files,\nand writes # them" || made.Instructions != "# Use\n\n---\nCall it." || made.UpdatedAt.IsZero() || made.CreatedAt.After(made.UpdatedAt) {
		t.Errorf("made %+v", made)
	}
	got := must[api.Skill](t)(s.Get(ctx, tenant, "pdf"))
	if fmt.Sprint(got) != fmt.Sprint(made) {
		t.Errorf("get %+v\nmade %+v", got, made)
	}
	_, err = s.Create(ctx, tenant, api.SkillSpec{Name: "pdf"}, nil, 0)
	code(t, "create of one that is there", err, api.CodeExists)
	_, err = s.Get(ctx, "ws-other", "pdf")
	code(t, "get of another tenant's", err, api.CodeNotFound)
	for _, bad := range []string{"", "a b", "../x", "a/b", strings.Repeat("x", 65), ".hid"} {
		_, err = s.Create(ctx, tenant, api.SkillSpec{Name: bad}, nil, 0)
		code(t, "create of "+bad, err, api.CodeInvalid)
	}
	must[api.Skill](t)(s.Create(ctx, tenant, api.SkillSpec{Name: "技能_1"}, nil, 0))

	if err := s.WriteFile(ctx, tenant, "pdf", "scripts/run.py", []byte("print(1)\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(ctx, tenant, "pdf", "requirements.txt", nil, 0); err != nil {
		t.Fatal(err)
	}
	if sk := must[api.Skill](t)(s.Get(ctx, tenant, "pdf")); !sk.PythonProject {
		t.Error("a package with requirements.txt is no project of Python's")
	}
	if data := must[[]byte](t)(s.ReadFile(ctx, tenant, "pdf", "./scripts//run.py")); string(data) != "print(1)\n" {
		t.Errorf("read %q", data)
	}
	put(t, filepath.Join(dirOf(s), "pdf"), map[string]string{".hidden": "x"})
	names := func(o skill.FileOptions) string {
		l := must[api.SkillFileList](t)(s.Files(ctx, tenant, "pdf", o))
		var out []string
		for _, f := range l.Files {
			out = append(out, fmt.Sprintf("%s:%s:%d", f.Path, f.Type, f.Size))
		}
		return fmt.Sprint(l.Path, " ", out, " ", l.Truncated)
	}
	for o, want := range map[skill.FileOptions]string{
		{Path: "scripts"}:        "scripts [scripts/run.py:file:9] false",
		{Limit: 2}:               ". [SKILL.md:file:%d requirements.txt:file:0] true",
		{Hidden: true, Limit: 1}: ". [.hidden:file:1] true",
	} {
		if strings.Contains(want, "%d") {
			want = fmt.Sprintf(want, len(must[[]byte](t)(s.ReadFile(ctx, tenant, "pdf", "SKILL.md"))))
		}
		if got := names(o); got != want {
			t.Errorf("files %+v: %s, want %s", o, got, want)
		}
	}

	if err := s.RemoveFile(ctx, tenant, "pdf", "scripts"); err != nil {
		t.Error(err)
	}
	_, err = s.ReadFile(ctx, tenant, "pdf", "scripts/run.py")
	code(t, "read of a removed file", err, api.CodeNotFound)
	code(t, "removal of SKILL.md", s.RemoveFile(ctx, tenant, "pdf", "SKILL.md"), api.CodeInvalid)
	if err := s.Remove(ctx, tenant, "pdf"); err != nil {
		t.Fatal(err)
	}
	code(t, "second removal", s.Remove(ctx, tenant, "pdf"), api.CodeNotFound)
	left := must[[]os.DirEntry](t)(os.ReadDir(dirOf(s)))
	if len(left) != 1 || left[0].Name() != "技能_1" {
		t.Errorf("left: %v", left)
	}
}

func TestUpdateKeepsWhatElseThereIs(t *testing.T) {
	for name, c := range map[string]struct{ entry, before, after string }{
		"keys and comments": {"SKILL.md",
			"---\n# about\nname: pdf\nlicense: MIT # yes\nallowed-tools:\n  - Read\n  - Bash(git:*)\ndescription: >\n  old\n  text\n# of the end\nmetadata: {a: 1}\n---\nbody\n",
			"---\n# about\nname: pdf\nlicense: MIT # yes\nallowed-tools:\n  - Read\n  - Bash(git:*)\ndescription: new\n# of the end\nmetadata: {a: 1}\n---\n\nbody\n"},
		"lower case": {"skill.md", "---\nname: pdf\ndescription: old\nx: 1\n---\nbody", "---\nname: pdf\ndescription: new\nx: 1\n---\n\nbody\n"},
		"flow":       {"SKILL.md", "---\n{name: pdf, x: [1, 2]}\n---\nbody", "---\nname: pdf\nx:\n- 1\n- 2\ndescription: new\n---\n\nbody\n"},
		"no front":   {"SKILL.md", "just text\n", "---\nname: pdf\ndescription: new\n---\n\njust text\n"},
		"CRLF":       {"SKILL.md", "---\r\nname: pdf\r\nx: 1\r\n---\r\nbody\r\n", "---\nname: pdf\nx: 1\ndescription: new\n---\n\nbody\n"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, s := t.Context(), skill.Open(t.TempDir())
			put(t, filepath.Join(dirOf(s), "pdf"), map[string]string{c.entry: c.before})
			before := must[api.Skill](t)(s.Get(ctx, tenant, "pdf"))
			after := must[api.Skill](t)(s.Update(ctx, tenant, "pdf", api.SkillChange{Description: new("new")}))
			if after.Description != "new" || after.Instructions != before.Instructions || fmt.Sprint(after.Meta) != fmt.Sprint(before.Meta) || after.Entry != c.entry {
				t.Errorf("updated to %+v from %+v", after, before)
			}
			if got := string(must[[]byte](t)(s.ReadFile(ctx, tenant, "pdf", c.entry))); got != c.after {
				t.Errorf("it says\n%s\nwant\n%s", got, c.after)
			}
			if files := must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(dirOf(s), "pdf"))); len(files) != 1 {
				t.Errorf("files: %v", files)
			}
		})
	}
}

// TestWritesAreWhole: who reads a file while it is written has the old one or the new,
// and what is refused leaves the old.
func TestWritesAreWhole(t *testing.T) {
	ctx, s := t.Context(), skill.Open(t.TempDir())
	must[api.Skill](t)(s.Create(ctx, tenant, api.SkillSpec{Name: "pdf", Description: "old", Instructions: "Do."}, nil, 0))
	dir := filepath.Join(dirOf(s), "pdf")
	put(t, dir, map[string]string{"notes": "old"})
	for name, change := range map[string]func() error{
		"SKILL.md": func() error {
			_, err := s.Update(ctx, tenant, "pdf", api.SkillChange{Description: new("new")})
			return err
		},
		"notes": func() error { return s.WriteFile(ctx, tenant, "pdf", "notes", []byte("new"), 0) },
	} {
		f := must[*os.File](t)(os.Open(filepath.Join(dir, name)))
		before := must[os.FileInfo](t)(f.Stat())
		if err := change(); err != nil {
			t.Fatal(err)
		}
		after := must[os.FileInfo](t)(os.Lstat(filepath.Join(dir, name)))
		if old := must[[]byte](t)(io.ReadAll(f)); os.SameFile(before, after) || !strings.Contains(string(old), "old") || strings.Contains(string(old), "new") {
			t.Errorf("%s: who has it open reads %q", name, old)
		}
		if now := must[[]byte](t)(os.ReadFile(filepath.Join(dir, name))); !strings.Contains(string(now), "new") {
			t.Errorf("%s is %q", name, now)
		}
		_ = f.Close()
	}
	for what, content := range map[string][]byte{"no text": {0xff}, "too much": make([]byte, 1<<20+1)} {
		if err := s.WriteFile(ctx, tenant, "pdf", "notes", content, 0); err == nil {
			t.Errorf("%s is written", what)
		}
	}
	if err := s.WriteFile(ctx, tenant, "pdf", "notes", []byte(strings.Repeat("x", 4096)), 1024); err == nil {
		t.Error("more is written than a tenant may have")
	}
	if now := must[[]byte](t)(os.ReadFile(filepath.Join(dir, "notes"))); string(now) != "new" {
		t.Errorf("what was refused leaves %q", now)
	}
	left := must[[]os.DirEntry](t)(os.ReadDir(dir))
	if len(left) != 2 {
		t.Errorf("left: %v", left)
	}
}

func TestNoSymlinkIsFollowed(t *testing.T) {
	ctx, s, out := t.Context(), skill.Open(t.TempDir()), t.TempDir()
	put(t, out, map[string]string{"secret": "---\nname: stolen\n---\nsecret", "SKILL.md": "outside"})
	put(t, filepath.Join(dirOf(s), "ok"), map[string]string{"SKILL.md": "---\nname: ok\n---\n"})
	link := func(to, at string) {
		t.Helper()
		p := filepath.Join(dirOf(s), at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.Symlink(to, p)); err != nil {
			t.Fatal(err)
		}
	}
	link(filepath.Join(out, "secret"), "planted/SKILL.md")
	link(out, "dir")
	link(filepath.Join(out, "secret"), "ok/file")
	link(out, "ok/below")
	link("SKILL.md", "ok/inner")
	l := must[api.SkillList](t)(s.List(ctx, tenant))
	if len(l.Skills) != 1 || len(l.Faults) != 1 || l.Faults[0].Dir != "planted" {
		t.Errorf("list %+v", l)
	}
	for _, p := range []string{"file", "below/secret", "inner"} {
		_, err := s.ReadFile(ctx, tenant, "ok", p)
		code(t, "read "+p, err, api.CodeInvalid)
	}
	_, err := s.Files(ctx, tenant, "ok", skill.FileOptions{Path: "below"})
	code(t, "list below", err, api.CodeInvalid)
	code(t, "write below", s.WriteFile(ctx, tenant, "ok", "below/new", []byte("x"), 0), api.CodeInvalid)
	// A file takes a symlink's place; what that led to stays.
	if err := s.WriteFile(ctx, tenant, "ok", "file", []byte("mine"), 0); err != nil {
		t.Error(err)
	}
	if data := must[[]byte](t)(os.ReadFile(filepath.Join(out, "secret"))); !strings.Contains(string(data), "secret") {
		t.Errorf("the file outside was written: %q", data)
	}
	for _, p := range []string{"../ok/SKILL.md", "/etc/passwd", "a/../../x", "", "."} {
		_, err := s.ReadFile(ctx, tenant, "ok", p)
		code(t, "read "+p, err, api.CodeInvalid)
		code(t, "write "+p, s.WriteFile(ctx, tenant, "ok", p, nil, 0), api.CodeInvalid)
	}
	if err := s.Remove(ctx, tenant, "ok"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(out, "secret")); err != nil {
		t.Errorf("removal went through a symlink: %v", err)
	}
	// Nor is the tenant's own directory one.
	if err := os.Symlink(out, filepath.Join(s.Base(), "tenants", "linked")); err != nil {
		t.Fatal(err)
	}
	if l, err := s.List(ctx, "linked"); err == nil {
		t.Errorf("a tenant's directory was a symlink: %v", l)
	}
}

func TestCreateFromDirectory(t *testing.T) {
	ctx, s, work := t.Context(), skill.Open(t.TempDir()), t.TempDir()
	put(t, work, map[string]string{
		"my/pkg/SKILL.md": "---\nname: inner\nlicense: MIT\ndescription: theirs\n---\nDo.", "my/pkg/a/b.txt": "b", "two/x/SKILL.md": "x", "two/y/SKILL.md": "y",
		"bad/SKILL.md": "bad",
	})
	if err := os.Symlink("/etc/passwd", filepath.Join(work, "bad", "passwd")); err != nil {
		t.Fatal(err)
	}
	dir := must[*os.File](t)(os.Open(work))
	defer dir.Close()
	src := func(p string) *skill.Source { return &skill.Source{Dir: dir, Path: p} }
	sk := must[api.Skill](t)(s.Create(ctx, tenant, api.SkillSpec{Name: "outer", DisplayName: "Mine"}, src("my"), 0))
	if sk.Name != "outer" || sk.DisplayName != "Mine" || sk.Description != "theirs" || sk.Instructions != "Do." || sk.Meta["license"] != "MIT" {
		t.Errorf("made %+v", sk)
	}
	if data := must[[]byte](t)(s.ReadFile(ctx, tenant, "outer", "a/b.txt")); string(data) != "b" {
		t.Errorf("copied %q", data)
	}
	_, err := s.Create(ctx, tenant, api.SkillSpec{}, src("two"), 0)
	code(t, "two packages", err, api.CodeInvalid)
	_, err = s.Create(ctx, tenant, api.SkillSpec{}, src("bad"), 0)
	code(t, "a symlink in it", err, api.CodeInvalid)
	_, err = s.Create(ctx, tenant, api.SkillSpec{}, src("my/pkg/a"), 0)
	code(t, "no package", err, api.CodeNotFound)
	_, err = s.Create(ctx, tenant, api.SkillSpec{Name: "large", Instructions: "x"}, nil, 1)
	code(t, "no room", err, api.CodeTooMany)
	if l := must[[]os.DirEntry](t)(os.ReadDir(dirOf(s))); len(l) != 1 {
		t.Errorf("what failed left something: %v", l)
	}
	if got := must[api.Skill](t)(s.Scan(ctx, tenant, "outer")); got.Name != "outer" || got.Dir != "outer" {
		t.Errorf("scan: %+v", got)
	}
	_, err = s.Scan(ctx, tenant, "../..")
	code(t, "scan upwards", err, api.CodeInvalid)
}

// pack makes a zip of files; what mode names is changed in its header.
func pack(t *testing.T, files map[string]string, change func(*zip.FileHeader)) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		h := &zip.FileHeader{Name: name, Method: zip.Deflate}
		if change != nil {
			change(h)
		}
		w, err := z.CreateHeader(h)
		if err == nil && text != "" {
			_, err = w.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestInstall(t *testing.T) {
	ctx, s := t.Context(), skill.Open(t.TempDir())
	one := pack(t, map[string]string{"pkg/SKILL.md": "---\nname: zed\n---\nDo.", "pkg/run.sh": "#!/bin/sh\n", "__MACOSX/._x": "x"}, func(h *zip.FileHeader) {
		if strings.HasSuffix(h.Name, ".sh") {
			h.SetMode(0o700)
		}
	})
	o := api.SkillArchive{Filename: "my pkg.zip", Suffix: "upload"}
	p := must[api.SkillPreviewList](t)(s.Preview(ctx, tenant, bytes.NewReader(one), o))
	if len(p.Skills) != 1 || p.Skills[0].Name != "zed" || p.Skills[0].Path != "" || p.Skills[0].Dir != "my-pkg-upload" || p.Skills[0].Taken {
		t.Fatalf("preview %+v", p)
	}
	if l := must[[]os.DirEntry](t)(os.ReadDir(dirOf(s))); len(l) != 0 {
		t.Errorf("a preview left %v", l)
	}
	l := must[api.SkillList](t)(s.Install(ctx, tenant, bytes.NewReader(one), o, 0))
	if len(l.Skills) != 1 || l.Skills[0].Dir != "my-pkg-upload" || l.Skills[0].Instructions != "Do." {
		t.Errorf("installed %+v", l)
	}
	if fi := must[os.FileInfo](t)(os.Stat(filepath.Join(dirOf(s), "my-pkg-upload/run.sh"))); fi.Mode().Perm() != 0o755 {
		t.Errorf("mode %v", fi.Mode())
	}
	_, err := s.Install(ctx, tenant, bytes.NewReader(one), api.SkillArchive{}, 0)
	code(t, "the same name again", err, api.CodeExists)
	if p = must[api.SkillPreviewList](t)(s.Preview(ctx, tenant, bytes.NewReader(one), o)); !p.Skills[0].Taken {
		t.Error("a preview does not say that the name is taken")
	}

	two := pack(t, map[string]string{"repo/skills/a/SKILL.md": "A", "repo/skills/b/SKILL.md": "---\nname: bee\n---", "repo/README": "r"}, nil)
	o = api.SkillArchive{Filename: "repo-v1.zip", Subdir: "/skills/"}
	_, err = s.Install(ctx, tenant, bytes.NewReader(two), o, 0)
	code(t, "two, none chosen", err, api.CodeInvalid)
	o.Paths = []string{"a", "nope"}
	_, err = s.Install(ctx, tenant, bytes.NewReader(two), o, 0)
	code(t, "one that is not there", err, api.CodeInvalid)
	o.Paths = []string{"a", "b"}
	l = must[api.SkillList](t)(s.Install(ctx, tenant, bytes.NewReader(two), o, 0))
	if len(l.Skills) != 2 || l.Skills[0].Name != "a" || l.Skills[0].Dir != "repo-v1-a" || l.Skills[1].Name != "bee" || l.Skills[1].Dir != "repo-v1-b" {
		t.Errorf("installed %+v", l)
	}
	if got := must[api.Skill](t)(s.Get(ctx, tenant, "a")); got.Dir != "repo-v1-a" {
		t.Errorf("get %+v", got)
	}
	flat := pack(t, map[string]string{"SKILL.md": "---\nname: flat\n---", "x": "y"}, nil)
	if l = must[api.SkillList](t)(s.Install(ctx, tenant, bytes.NewReader(flat), api.SkillArchive{}, 0)); l.Skills[0].Dir != "flat" {
		t.Errorf("installed %+v", l)
	}
	places := must[[]skill.Place](t)(s.Places(ctx, tenant))
	if len(places) != 4 || places[3].Skill.Name != "zed" || places[3].Path != filepath.Join(dirOf(s), "my-pkg-upload") || places[3].Ino == 0 {
		t.Errorf("places %+v", places)
	}
}

func TestBadArchives(t *testing.T) {
	ctx, s := t.Context(), skill.Open(t.TempDir())
	md := "---\nname: x\n---"
	files := func(more ...string) map[string]string {
		m := map[string]string{"x/SKILL.md": md}
		for _, name := range more {
			m[name] = "1"
		}
		return m
	}
	many := files()
	for i := range 100_000 {
		many[fmt.Sprint("x/", i)] = ""
	}
	mode := func(m os.FileMode) func(*zip.FileHeader) {
		return func(h *zip.FileHeader) {
			if h.Name != "x/SKILL.md" {
				h.SetMode(m)
			}
		}
	}
	good := pack(t, files("x/file"), nil)
	damaged := bytes.Clone(good)
	damaged[len("PK\x03\x04")+26+len("x/SKILL.md")+2] ^= 0xff
	for name, c := range map[string]struct {
		data []byte
		want api.Code
	}{
		"empty":           {nil, api.CodeInvalid},
		"no zip":          {[]byte("hello"), api.CodeInvalid},
		"cut":             {good[:len(good)-10], api.CodeInvalid},
		"damaged":         {damaged, api.CodeInvalid},
		"no skill":        {pack(t, map[string]string{"x/README": "1"}, nil), api.CodeInvalid},
		"upwards":         {pack(t, files("x/../../y"), nil), api.CodeInvalid},
		"upwards, DOS":    {pack(t, files(`x\..\..\y`), nil), api.CodeInvalid},
		"absolute":        {pack(t, files("/etc/y"), nil), api.CodeInvalid},
		"absolute, DOS":   {pack(t, files(`\y`), nil), api.CodeInvalid},
		"a drive":         {pack(t, files("C:/y"), nil), api.CodeInvalid},
		"NUL":             {pack(t, files("x/\x00y"), nil), api.CodeInvalid},
		"twice":           {pack(t, files("x/A", "x/a"), nil), api.CodeInvalid},
		"file and below":  {pack(t, files("x/a", "x/A/b"), nil), api.CodeInvalid},
		"a symlink":       {pack(t, files("x/link"), mode(os.ModeSymlink|0o777)), api.CodeInvalid},
		"a device":        {pack(t, files("x/dev"), mode(os.ModeDevice|0o666)), api.CodeInvalid},
		"many":            {pack(t, many, func(h *zip.FileHeader) { h.Method = zip.Store }), api.CodeTooLarge},
		"a bomb":          {pack(t, map[string]string{"x/SKILL.md": md, "x/b": strings.Repeat("0", 1<<20)}, nil), api.CodeTooLarge},
		"a large file":    {pack(t, map[string]string{"x/SKILL.md": md, "x/b": strings.Repeat("0", 16<<20+1)}, nil), api.CodeTooLarge},
		"too large":       {make([]byte, 20<<20+1), api.CodeTooLarge},
		"deep":            {pack(t, files("x/"+strings.Repeat("d/", 30)+"y"), nil), api.CodeTooLarge},
		"a link as skill": {pack(t, map[string]string{"x/SKILL.md": "/etc/passwd"}, func(h *zip.FileHeader) { h.SetMode(os.ModeSymlink | 0o777) }), api.CodeInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Install(ctx, tenant, bytes.NewReader(c.data), api.SkillArchive{}, 0)
			code(t, "install", err, c.want)
			_, err = s.Preview(ctx, tenant, bytes.NewReader(c.data), api.SkillArchive{})
			code(t, "preview", err, c.want)
		})
	}
	if l, err := os.ReadDir(dirOf(s)); err == nil && len(l) > 0 {
		t.Errorf("refused archives left %v", l)
	}
	if l := must[[]os.DirEntry](t)(os.ReadDir(s.Base())); len(l) != 1 {
		t.Errorf("refused archives left %v", l)
	}
}
