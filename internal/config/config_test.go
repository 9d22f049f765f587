package config_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/config"
)

func keys() []config.Key {
	return []config.Key{
		{Name: "home", Env: "OLD_HOME", Unsaid: true, Path: true, Default: []string{"/default"}},
		{Name: "listen", List: true},
		{Name: "rules", Path: true},
		{Name: "log.level", Default: []string{"info"}, Check: func(v string) (string, bool) { return "write info or warn", v == "info" || v == "warn" }},
	}
}

func find(t *testing.T, in config.Input, key string) config.Setting {
	t.Helper()
	all, _, err := config.Resolve(keys(), in)
	if err != nil {
		t.Fatalf("%+v: %v", in, err)
	}
	return all[slices.IndexFunc(all, func(s config.Setting) bool { return s.Name == key })]
}

// TestWhoGoesFirst tries every combination of sources.
func TestWhoGoesFirst(t *testing.T) {
	for mask := range 8 {
		flag, env, file := mask&4 != 0, mask&2 != 0, mask&1 != 0
		in := config.Input{}
		level, listen, source := "info", "", config.FromDefault
		if file {
			in.File = []byte("log: {level: warn}\nlisten: [f1, ' f2 ']\n")
			level, listen, source = "warn", "f1 f2", config.FromFile
		}
		if env {
			in.Environ = []string{"PATH=/bin", "CLOCHE__LOG__LEVEL=info", "CLOCHE__LISTEN= e1 ,e2 , ,"}
			level, listen, source = "info", "e1 e2", config.FromEnvironment
		}
		if flag {
			in.Flags = map[string][]string{"log.level": {"warn"}, "listen": {"g1", "g2"}}
			level, listen, source = "warn", "g1 g2", config.FromFlag
		}
		if s := find(t, in, "log.level"); s.Text() != level || s.Source != source {
			t.Errorf("flag=%t env=%t file=%t: level %+v", flag, env, file, s)
		}
		if s := find(t, in, "listen"); strings.Join(s.Values, " ") != listen || s.Source != source {
			t.Errorf("flag=%t env=%t file=%t: listen %+v", flag, env, file, s)
		}
	}
}

func TestListsInTheEnvironment(t *testing.T) {
	for text, want := range map[string]string{
		"a": "a", "a,b": "a b", " a , b ": "a b", "[a, b]": "a b", "[]": "", "['a,b', \"c\"]": "a,b c", "- a\n- b": "a b", "[ ' a ' ]": "a",
		"unix:///a,tcp://[::1]:7": "unix:///a tcp://[::1]:7",
	} {
		// Whether the key is in the file changes nothing.
		for _, file := range []string{"", "listen: [x, y, z]"} {
			s := find(t, config.Input{Environ: []string{"CLOCHE__LISTEN=" + text}, File: []byte(file)}, "listen")
			if strings.Join(s.Values, " ") != want || s.Source != config.FromEnvironment {
				t.Errorf("%q: %+v", text, s)
			}
		}
	}
	for _, bad := range []string{"[a", "[{a: b}]", "[[a]]"} {
		_, _, err := config.Resolve(keys(), config.Input{Environ: []string{"CLOCHE__LISTEN=" + bad}})
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Field != "listen" || !strings.Contains(e.Message, "CLOCHE__LISTEN") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestNothingSaid: an empty path of the host means no path; an empty value of another key
// is a value.
func TestNothingSaid(t *testing.T) {
	if s := find(t, config.Input{Environ: []string{"CLOCHE__RULES="}, File: []byte("rules: /f")}, "rules"); s.Text() != "/f" || s.Source != config.FromFile {
		t.Errorf("an empty path: %+v", s)
	}
	for _, file := range []string{"rules:", "rules: null", "rules: ''", "# nothing", ""} {
		if s := find(t, config.Input{File: []byte(file)}, "rules"); len(s.Values) != 0 || s.Source != config.FromDefault {
			t.Errorf("%q: %+v", file, s)
		}
	}
	for _, in := range []config.Input{{Environ: []string{"CLOCHE__LOG__LEVEL="}}, {File: []byte("log: {level: ''}")}, {File: []byte("log: {level: }")}} {
		if _, _, err := config.Resolve(keys(), in); err == nil {
			t.Errorf("%+v is taken", in)
		}
	}
	for env, want := range map[string]string{"OLD_HOME=/old": "/old", "OLD_HOME=": "/default"} {
		if s := find(t, config.Input{Environ: []string{env}}, "home"); s.Text() != want {
			t.Errorf("%s: %+v", env, s)
		}
	}
	if s := find(t, config.Input{Environ: []string{"OLD_HOME=/old", "CLOCHE__HOME=/new"}}, "home"); s.Text() != "/new" {
		t.Errorf("the older name goes first: %+v", s)
	}
}

// TestTextsOfAFile are what YAML makes of them.
func TestTextsOfAFile(t *testing.T) {
	for text, want := range map[string]string{`"a\tb"`: "a\tb", `'it''s'`: "it's", "plain # comment": "plain", "017": "017", "true": "true", `"\u00e9"`: "é", "1e3": "1e3"} {
		if s := find(t, config.Input{File: []byte("rules: " + text)}, "rules"); s.Text() != want {
			t.Errorf("%s became %q, want %q", text, s.Text(), want)
		}
	}
	for _, bad := range []string{"rules: |\n  a\n", "listen: [|\n a]", "listen:\n- >\n  a\n", "rules: &a b", "rules: !x b", "rules: *a"} {
		if _, _, err := config.Resolve(keys(), config.Input{File: []byte(bad)}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestUnknownKeys(t *testing.T) {
	_, others, err := config.Resolve(keys(), config.Input{Environ: []string{"CLOCHE__NOPE=1", "CLOCHE__LOG=x", "CLOCHE__A__B_C=d=e", "CLOCHE_NOPE=1", "CLOCHE__=", "NOPE"}})
	var got []string
	for _, v := range others {
		got = append(got, v.Name+" "+strings.Join(v.Path, ".")+" "+v.Text)
	}
	if want := "CLOCHE__  |CLOCHE__A__B_C a.b_c d=e|CLOCHE__LOG log x|CLOCHE__NOPE nope 1"; err != nil || strings.Join(got, "|") != want {
		t.Errorf("got %q, %v", got, err)
	}
	for text, says := range map[string]string{
		"nope: 1": "line 1, column 1: nope", "log: {size: warn}": "log.size", "home: /x": "home", "log: warn": "keys with values", "listen: a": "a list",
		"listen: [a, [b]]": "single values", "listen: [null]": "single values", "log: {level: [a]}": "one value", "rules: a\nrules: b": "line 2, column 1: rules: duplicate key",
		"- a": "keys with values", "a: [": "cannot be read", "rules: a\n---\nrules: b": "more than one", "log:\n  level: loud": "loud", "listen:": "no value",
	} {
		_, _, err := config.Resolve(keys(), config.Input{File: []byte(text)})
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Code != api.CodeInvalid || !strings.Contains(e.Message, says) || e.Hint == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, _, err := config.Resolve(keys(), config.Input{File: make([]byte, 65<<10)}); api.CodeOf(err) != api.CodeTooLarge {
		t.Errorf("a large file: %v", err)
	}
}

// FuzzSettings: whatever is in the file and the environment, the answer is settings or
// a refusal, and a flag goes before both.
func FuzzSettings(f *testing.F) {
	for _, file := range []string{"", "listen: [a]\n", "log: {level: warn}", "a: &x [*x]", "? a\n: b", "!!map {}", "log: {level: {}}", "\xff", "{{", "rules: |\n  x\n"} {
		f.Add([]byte(file), "CLOCHE__LISTEN=a,b", "x")
	}
	f.Fuzz(func(t *testing.T, file []byte, env, flag string) {
		all, _, err := config.Resolve(keys(), config.Input{File: file, Environ: []string{env}, Flags: map[string][]string{"rules": {flag}}})
		if err != nil {
			if _, ok := errors.AsType[*api.Error](err); !ok {
				t.Fatalf("error of type %T", err)
			}
			return
		}
		if len(all) != len(keys()) || all[2].Text() != flag || all[2].Source != config.FromFlag {
			t.Fatalf("%+v", all)
		}
	})
}
