package workspace

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func FuzzCheckPath(f *testing.F) {
	for _, s := range []string{"", "/", "/srv/data", "relative", "/a/..", "/a//b", `C:\x`, "/a\x00", "/\xff\xfe", `\\s\x`, "/...", "/ a\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		if CheckPath(p) != nil {
			return
		}
		if !strings.HasPrefix(p, "/") || path.Clean(p) != p || strings.ContainsRune(p, 0) || len(p) > maxPath {
			t.Errorf("%q was taken", p)
		}
		if slices.Contains(strings.Split(p, "/"), "..") {
			t.Errorf("%q was taken", p)
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	f.Add("/a b")
	f.Add("/tab\tand\nnewline\\040")
	f.Add("/x")
	f.Fuzz(func(t *testing.T, p string) {
		parseMounts(p)
		if p == "" || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' && !strings.ContainsRune(" \t\n", r) || r > 126 }) {
			return
		}
		// As the kernel writes it.
		escaped := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`).Replace(p)
		got := parseMounts("36 35 98:0 " + escaped + " " + escaped + " rw,noatime master:1 - ext3 /dev/root rw\n")
		if want := (Mount{ID: 36, Volume: "98:0", Root: p, Point: p, Type: "ext3"}); len(got) != 1 || got[0] != want {
			t.Errorf("%q became %+v", p, got)
		}
	})
}
