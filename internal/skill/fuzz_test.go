//go:build linux

package skill_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/skill"
)

// FuzzFrontMatter holds that any bytes in the place of a SKILL.md are a skill or a
// refusal, and that an update changes what it was asked to change and nothing else.
func FuzzFrontMatter(f *testing.F) {
	for _, seed := range []string{
		"", "---\n", "---\nname: a\n---\nbody", "---\nname: a\nx: [1, {y: z}]\n# c\n---\n", "---\n{name: a}\n---\n", "---\n- a\n---\n", "---\na: &x 1\nb: *x\n---\n",
		"---\ndescription: |\n  two\n  lines\nname: \"q\"\n---\n---\n", "---\r\nname: a\r\n---\r\n", "\ufeff---\nname: a\n---\n", "---\n? a\n: b\n---\n", "---\n" + strings.Repeat("[", 200) + "\n---\n",
		"---\nname: a\nname: b\n---\n", "---\nx: 1e999\n---\n", "---\nx: !!binary aGk=\n---\n", "---\nname: a\n...\nx: 1\n---\n", "---\n#only\n---\n", "---\ndescription:\n---\n", "---\n\tname: a\n---\n",
	} {
		f.Add([]byte(seed), "new: text", "body")
	}
	f.Fuzz(func(t *testing.T, data []byte, description, body string) {
		ctx, s := t.Context(), skill.Open(t.TempDir())
		put(t, filepath.Join(dirOf(s), "one"), map[string]string{"SKILL.md": string(data)})
		l, err := s.List(ctx, tenant)
		if err != nil || len(l.Skills)+len(l.Faults) != 1 {
			t.Fatalf("list %+v: %v", l, err)
		}
		if len(l.Skills) == 0 {
			return
		}
		was := l.Skills[0]
		if _, err := json.Marshal(was); err != nil {
			t.Fatalf("what was read cannot be told: %v", err)
		}
		now, err := s.Update(ctx, tenant, was.Name, api.SkillChange{Description: &description, Instructions: &body})
		if err != nil {
			if code := api.CodeOf(err); code != api.CodeInvalid && code != api.CodeTooLarge {
				t.Fatalf("update: %v", err)
			}
			return
		}
		if now.Name != was.Name || now.Description != strings.TrimSpace(description) || now.Instructions != strings.TrimSpace(body) || !reflect.DeepEqual(now.Meta, was.Meta) {
			t.Fatalf("updated to %+v, from %+v", now, was)
		}
	})
}

// FuzzZip holds that an archive becomes skills or is refused, and leaves nothing
// when it is, nor anything but files and directories in any case.
func FuzzZip(f *testing.F) {
	seed := func(files map[string]string) {
		t := &testing.T{}
		f.Add(pack(t, files, nil), "a.zip", "")
	}
	seed(map[string]string{"SKILL.md": "---\nname: a\n---\n"})
	seed(map[string]string{"x/SKILL.md": "a", "x/b/c": "d", "x/../e": "f"})
	seed(map[string]string{"x/a/SKILL.md": "a", "x/b/SKILL.md": "b"})
	f.Add([]byte("PK\x05\x06"+strings.Repeat("\x00", 18)), "", "x")
	f.Fuzz(func(t *testing.T, data []byte, filename, subdir string) {
		ctx, s := t.Context(), skill.Open(t.TempDir())
		o := api.SkillArchive{Filename: filename, Subdir: subdir}
		p, err := s.Preview(ctx, tenant, bytes.NewReader(data), o)
		for _, pv := range p.Skills {
			o.Paths = append(o.Paths, pv.Path)
		}
		l, ierr := s.Install(ctx, tenant, bytes.NewReader(data), o, 0)
		if err != nil && ierr == nil {
			t.Fatalf("installed what could not be previewed: %v", err)
		}
		top, _ := os.ReadDir(dirOf(s))
		if len(top) != len(l.Skills) {
			t.Fatalf("%d skills, and there are %v (%v)", len(l.Skills), top, ierr)
		}
		if ierr != nil {
			return
		}
		_ = filepath.WalkDir(dirOf(s), func(p string, d os.DirEntry, err error) error {
			if err != nil || !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%s: %v, %v", p, d, err)
			}
			return nil
		})
		for _, sk := range l.Skills {
			if got, err := s.Get(ctx, tenant, sk.Name); err != nil || got.Dir != sk.Dir {
				t.Errorf("get %s: %+v, %v", sk.Name, got, err)
			}
		}
	})
}
