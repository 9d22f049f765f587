package command

import (
	"errors"
	"maps"
	"path"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// here makes paths absolute as if the working directory were /here.
func here(_, p string) (string, error) {
	if path.IsAbs(p) {
		return path.Clean(p), nil
	}
	return path.Join("/here", p), nil
}

func wantInvalid(t *testing.T, what string, err error) {
	t.Helper()
	e, ok := errors.AsType[*api.Error](err)
	if !ok || e.Code != api.CodeInvalid || e.Field == "" || e.Hint == "" {
		t.Errorf("%s: got %v, want an invalid_argument that names field and what is right", what, err)
	}
}

func TestParseMount(t *testing.T) {
	for in, want := range map[string]api.Mount{
		"/a:/b":       {Source: "/a", Target: "/b"},
		"/a:/b:rw":    {Source: "/a", Target: "/b"},
		"/a:/b:ro":    {Source: "/a", Target: "/b", ReadOnly: true},
		"./d:/data":   {Source: "/here/d", Target: "/data"},
		".:/src:ro":   {Source: "/here", Target: "/src", ReadOnly: true},
		"../up:/x":    {Source: "/up", Target: "/x"},
		"/a b/ü:/x y": {Source: "/a b/ü", Target: "/x y"},
	} {
		if got, err := ParseMount(in, here); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("parseMount(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":", "/a", "/a:", ":/b", "/a:b", "/a:/b:rx", "/a:/b:", "/a:b:/c:ro", "/a:/b:ro:ro", "/\xff:/b", "/a:/\xff"} {
		_, err := ParseMount(in, here)
		wantInvalid(t, in, err)
	}
}

func TestParseWorkspace(t *testing.T) {
	for in, want := range map[string]api.Workspace{
		"job":             {Name: "job"},
		"job:/srv/job":    {Name: "job", Path: "/srv/job"},
		".":               {Dir: "/here"},
		"./job":           {Dir: "/here/job"},
		"..:/x":           {Dir: "/", Path: "/x"},
		"a/b":             {Dir: "/here/a/b"},
		"/data:/srv/job":  {Dir: "/data", Path: "/srv/job"},
		":/srv/job":       {Path: "/srv/job"},
		"job:ro":          {Name: "job", ReadOnly: true},
		"job:/w:rw":       {Name: "job", Path: "/w"},
		"./job:/w:ro":     {Dir: "/here/job", Path: "/w", ReadOnly: true},
		":ro":             {ReadOnly: true},
		"job.v1-2_3":      {Name: "job.v1-2_3"},
		".hidden:/w":      {Dir: "/here/.hidden", Path: "/w"},
		"/with space:/w ": {Dir: "/with space", Path: "/w "},
	} {
		if got, err := ParseWorkspace(in, here); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("parseWorkspace(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "job:", "job:rel", "Job", "a b", "job:/a:/b", "job:/a:rx", "job:/a:/b:ro", "job:ro:ro", strings.Repeat("x", 64), "\xff/", "j\x00b"} {
		_, err := ParseWorkspace(in, here)
		wantInvalid(t, in, err)
	}
}

func TestSplitFile(t *testing.T) {
	for in, want := range map[string][2]string{
		"a:/b": {"a", "/b"}, "a:b:/c": {"a:b", "/c"}, "./x y:/z": {"./x y", "/z"}, `C:\f:/f`: {`C:\f`, "/f"},
	} {
		if src, dst, err := SplitFile(in); err != nil || src != want[0] || dst != want[1] {
			t.Errorf("splitFile(%q) = %q, %q, %v", in, src, dst, err)
		}
	}
	for _, in := range []string{"", "a", "a:", ":/b", "a:b", "a:/\xff"} {
		_, _, err := SplitFile(in)
		wantInvalid(t, in, err)
	}
}

func TestParseEnv(t *testing.T) {
	lookup := func(k string) (string, bool) {
		v, ok := map[string]string{"SET": "here", "EMPTY": "", "RAW": "\xff"}[k]
		return v, ok
	}
	got, err := ParseEnv([]string{"A=1", "B=x=y", "C=", "SET", "EMPTY", "A=2"}, lookup)
	want := map[string]string{"A": "2", "B": "x=y", "C": "", "SET": "here", "EMPTY": ""}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("parseEnv = %v, %v; want %v", got, err, want)
	}
	for _, in := range []string{"", "=x", "UNSET", "RAW", "K=\xff", "\xff=1"} {
		_, err := ParseEnv([]string{in}, lookup)
		wantInvalid(t, in, err)
	}
	if _, err := ParseEnv([]string{"PASSWORD=s3cret\xff"}, lookup); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("the value of a variable is in the error: %v", err)
	}
}

func TestParseLabels(t *testing.T) {
	got, err := ParseLabels("--label", []string{"a=1", "b=", "c=x=y"})
	if want := map[string]string{"a": "1", "b": "", "c": "x=y"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("parseLabels = %v, %v", got, err)
	}
	for _, in := range []string{"", "a", "=1"} {
		_, err := ParseLabels("--label", []string{in})
		wantInvalid(t, in, err)
	}
}

func TestParseLocation(t *testing.T) {
	for in, want := range map[string]Location{
		"sb:/x": {"sb", "/x"}, "sb:": {"sb", ""}, "sb:rel:x": {"sb", "rel:x"}, "./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"},
		"-": {"", "-"}, `C:\x`: {"", `C:\x`}, "file": {"", "file"}, ":x": {"", ":x"}, "sb:/\xff": {"sb", "/\xff"},
	} {
		if got := ParseLocation(in); !reflect.DeepEqual(got, want) {
			t.Errorf("parseLocation(%q) = %+v, want %+v", in, got, want)
		}
	}
}

func TestCheckArgv(t *testing.T) {
	if err := CheckArgv([]string{"sh", "-c", ""}); err != nil {
		t.Errorf("an empty argument is refused: %v", err)
	}
	for _, argv := range [][]string{nil, {}, {""}, {"cat", "\xff"}} {
		wantInvalid(t, strings.Join(argv, " "), CheckArgv(argv))
	}
}

func FuzzParseArguments(f *testing.F) {
	for _, s := range []string{"/a:/b:ro", "job:/srv", "./a:/b", "K=V", "sb:/x", ":::", "\xff:/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if m, err := ParseMount(s, here); err == nil && (!path.IsAbs(m.Source) && !WindowsPath(m.Source) || !path.IsAbs(m.Target) || !utf8.ValidString(m.Source+m.Target)) {
			t.Errorf("parseMount(%q) = %+v", s, m)
		}
		if w, err := ParseWorkspace(s, here); err == nil {
			if w.Name != "" && (w.Dir != "" || !api.ValidName(w.Name)) || w.Path != "" && !path.IsAbs(w.Path) {
				t.Errorf("parseWorkspace(%q) = %+v", s, w)
			}
		}
		if src, dst, err := SplitFile(s); err == nil && (src == "" || !path.IsAbs(dst) || src+":"+dst != s) {
			t.Errorf("splitFile(%q) = %q, %q", s, src, dst)
		}
		if l := ParseLocation(s); l.Sandbox != "" && (l.Sandbox+":"+l.Path != s || !api.ValidName(l.Sandbox)) {
			t.Errorf("parseLocation(%q) = %+v", s, l)
		}
	})
}
