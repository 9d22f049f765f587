package refusal

import (
	"bytes"
	"encoding/json"
	"testing"
)

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
		if len(n.Path) > MaxPath || len(n.Program) > MaxProgram || len(n.Op) > MaxOp {
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
