package command

import (
	"bytes"
	"testing"
)

func TestParseDetachKeys(t *testing.T) {
	for in, want := range map[string]string{
		"ctrl-p,ctrl-q": "\x10\x11", "CTRL-A": "\x01", "ctrl-],q": "\x1dq", "~,.": "~.", "": "", "ctrl-@": "\x00", "ctrl-_": "\x1f",
	} {
		if got, err := ParseDetachKeys(in); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{",", "ctrl-", "ctrl-pq", "ab", " ", "é", "ctrl-1", "a,", "a,,b", "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a"} {
		if got, err := ParseDetachKeys(in); err == nil {
			t.Errorf("%q is %q, want an error", in, got)
		}
	}
}

func TestKeyFilter(t *testing.T) {
	for name, tc := range map[string]struct {
		keys   string
		typed  []string
		want   string
		detach bool
	}{
		"at once":         {"pq", []string{"abpq"}, "ab", true},
		"one by one":      {"pq", []string{"p", "q", "x"}, "", true},
		"something else":  {"pq", []string{"p", "x", "q"}, "pxq", false},
		"again":           {"pq", []string{"pp", "p", "q"}, "pp", true},
		"overlapping":     {"aab", []string{"a", "a", "a", "b"}, "a", true},
		"no keys":         {"", []string{"\x10\x11"}, "\x10\x11", false},
		"held back":       {"pq", []string{"xp"}, "x", false},
		"behind the keys": {"pq", []string{"pqrest"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := keyFilter{keys: []byte(tc.keys)}
			var got []byte
			detach := false
			for _, typed := range tc.typed {
				if detach {
					break
				}
				var pass []byte
				pass, detach = f.feed([]byte(typed))
				got = append(got, pass...)
			}
			if string(got) != tc.want || detach != tc.detach {
				t.Errorf("%q, %v; want %q, %v", got, detach, tc.want, tc.detach)
			}
		})
	}
	f := keyFilter{keys: []byte("pq")}
	f.feed([]byte("p"))
	if got := f.flush(); string(got) != "p" || f.flush() != nil {
		t.Errorf("flushed %q", got)
	}
	if pass, detach := f.feed([]byte("q")); string(pass) != "q" || detach {
		t.Errorf("keys with a flush in between: %q, %v", pass, detach)
	}
}

// FuzzKeyFilter: nothing typed is lost or made up, however it is cut.
func FuzzKeyFilter(f *testing.F) {
	f.Add([]byte("ab"), []byte("xaabab"), 2)
	f.Fuzz(func(t *testing.T, keys, typed []byte, cut int) {
		if len(keys) > maxDetachKeys {
			return
		}
		cut = min(max(cut, 0), len(typed))
		k := keyFilter{keys: keys}
		a, detach := k.feed(bytes.Clone(typed[:cut]))
		got := bytes.Clone(a)
		if !detach {
			var b []byte
			b, detach = k.feed(bytes.Clone(typed[cut:]))
			got = append(append(got, b...), k.flush()...)
		}
		want, _, found := bytes.Cut(typed, keys)
		if len(keys) == 0 {
			want, found = typed, false
		}
		if !bytes.Equal(got, want) || detach != found {
			t.Errorf("keys %q, typed %q cut at %d: %q, %v; want %q, %v", keys, typed, cut, got, detach, want, found)
		}
	})
}
