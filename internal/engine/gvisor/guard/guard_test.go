package guard

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/cloche-dev/cloche/api"
)

func testRules() Rules {
	return Rules{
		Targets: []string{"/", "/w", "/w/src/mounted", "/w/keys/mounted", "/w2"},
		Rules: []Rule{
			{"/w", "keys", api.AccessNone}, {"/w", "src", api.AccessRead}, {"/w", "src/out", api.AccessWrite},
			{"/w", "src/out/not", api.AccessRead}, {"/w2", "src", api.AccessNone},
		},
	}
}

func TestCovering(t *testing.T) {
	for name, want := range map[string]int{
		"/w": -1, "/w/keys": 0, "/w/keys/a/b": 0, "/w/keysx": -1, "/w/key": -1, "/w/src": 1, "/w/src/a": 1, "/w/src/out": 2, "/w/src/out/a": 2,
		"/w/src/out/not/a": 3, "/w2/src/x": 4, "/": -1, "/elsewhere/w/keys": -1, "/w/srcx/out": -1,
		"/w/src/mounted": -1, "/w/src/mounted/x": -1, // another mount's
		"/w/keys/mounted/x": 0, // which is covered
	} {
		if got, ok := testRules().covering(name); got != want || ok != (want >= 0) {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
}

func TestBelow(t *testing.T) {
	for name, want := range map[string]int{"/w": 0, "/w/src": 1, "/w/src/out": 3, "/w/plain": -1, "/w/src/ou": -1, "/w2": 4} {
		if got, ok := testRules().below(name); got != want || ok != (want >= 0) {
			t.Errorf("%s: %d, %v, want %d", name, got, ok, want)
		}
	}
}

// FuzzParseNote: the content of a note is bounded, whichever process wrote it.
func FuzzParseNote(f *testing.F) {
	good, err := json.Marshal(Note{Seq: 1, Rule: 2, Op: "open", Path: []byte("a\nb"), Program: []byte("sh"), UID: 3})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range [][]byte{good, nil, []byte("null"), []byte(`{"seq":-1}`), []byte(`{"seq":18446744073709551615,"rule":9223372036854775807}`), []byte(`{"path":"!"}`), bytes.Repeat([]byte("["), MaxLine)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		n, err := ParseNote(line)
		if err != nil {
			return
		}
		if len(n.Path) > MaxPath || len(n.Program) > maxProgram || len(n.Op) > maxOp {
			t.Errorf("%+v", n)
		}
		again, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := ParseNote(again); err != nil || m.Seq != n.Seq || !bytes.Equal(m.Path, n.Path) {
			t.Errorf("%+v is read as %+v, %v", n, m, err)
		}
	})
}
