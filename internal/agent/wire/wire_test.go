package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
)

func TestFramesThereAndBack(t *testing.T) {
	var buf bytes.Buffer
	w := NewWriter(&buf)
	big := bytes.Repeat([]byte("x"), 2*MaxData+1)
	if err := errors.Join(w.JSON(KindRequest, Request{Op: OpStat, Path: []byte("/a\xff")}), w.Bytes(KindData, big), w.Output(KindStdout, 7, []byte("out")), w.End()); err != nil {
		t.Fatal(err)
	}
	r := NewReader(&buf)
	kind, p, err := r.Next()
	if err != nil || kind != KindRequest {
		t.Fatal(kind, err)
	}
	if q, err := Decode[Request](p); err != nil || string(q.Path) != "/a\xff" || q.Op != OpStat {
		t.Fatalf("%+v, %v", q, err)
	}
	var got []byte
	for len(got) < len(big) {
		kind, p, err := r.Next()
		if err != nil || kind != KindData {
			t.Fatal(kind, err)
		}
		got = append(got, p...)
	}
	if !bytes.Equal(got, big) {
		t.Fatal("the bytes changed")
	}
	kind, p, err = r.Next()
	seq, data, serr := CutSeq(p)
	if err != nil || serr != nil || kind != KindStdout || seq != 7 || string(data) != "out" {
		t.Fatal(kind, seq, string(data), err, serr)
	}
	if kind, _, err = r.Next(); err != nil || kind != KindEnd {
		t.Fatal(kind, err)
	}
	if _, _, err = r.Next(); err != io.EOF {
		t.Fatal(err)
	}
}

func TestMalformedFrames(t *testing.T) {
	for name, in := range map[string]string{
		"unknown kind":  "?\x00\x00\x00\x00",
		"cut header":    "Q\x00",
		"cut payload":   "Q\x00\x00\x00\x05ab",
		"too long":      "d\x7f\xff\xff\xff",
		"too long json": "Q\x7f\xff\xff\xff",
	} {
		if _, _, err := NewReader(strings.NewReader(in)).Next(); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := NewReader(strings.NewReader("H\x00\x00\x20\x00" + strings.Repeat("x", 0x2000)))
	r.Max = MaxHello
	if _, _, err := r.Next(); !errors.Is(err, ErrFrame) {
		t.Errorf("an oversized hello: %v", err)
	}
}

func TestALengthAloneCostsNothing(t *testing.T) {
	r := NewReader(strings.NewReader("Q\x00\xff\xff\xffx"))
	if _, _, err := r.Next(); !errors.Is(err, ErrFrame) {
		t.Fatal(err)
	}
	if cap(r.buf) > 1<<17 {
		t.Fatalf("%d bytes were set aside for one that came", cap(r.buf))
	}
}

func TestChoose(t *testing.T) {
	for want, theirs := range map[int][]int{0: {}, Version: {99, 1, Version, -1}, 1: {1}} {
		if got := Choose(Versions(), theirs); got != want {
			t.Errorf("%v: %d", theirs, got)
		}
	}
}

// writes records each write.
type writes struct {
	net.Conn
	all []string
}

func (w *writes) Write(p []byte) (int, error) {
	w.all = append(w.all, string(p))
	return len(p), nil
}

func TestCoalesce(t *testing.T) {
	const (
		syn   = "\x00\x01\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00"
		data  = "\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x04"
		grant = "\x00\x01\x00\x02\x00\x00\x00\x01\x00\x0c\x00\x00"
		empty = "\x00\x00\x00\x04\x00\x00\x00\x01\x00\x00\x00\x00"
	)
	var w writes
	c := Coalesce(&w)
	for _, p := range []string{syn, data, "body", empty, data, "more", grant, syn, syn} {
		if n, err := c.Write([]byte(p)); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
	}
	want := []string{syn + data + "body", empty, data + "more", grant, syn + syn}
	if strings.Join(w.all, "|") != strings.Join(want, "|") {
		t.Fatalf("got %q", w.all)
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte("Q\x00\x00\x00\x02{}d\x00\x00\x00\x01x.\x00\x00\x00\x00"))
	f.Add([]byte("o\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x01y"))
	f.Add([]byte("F\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		total := 0
		for {
			kind, p, err := r.Next()
			if err != nil {
				if err != io.EOF && !errors.Is(err, ErrFrame) {
					t.Fatalf("unclassified: %v", err)
				}
				return
			}
			total += 5 + len(p)
			if total > len(in) {
				t.Fatal("more came out than went in")
			}
			switch kind {
			case KindRequest:
				_, _ = Decode[Request](p)
			case KindHello:
				_, _ = Decode[Hello](p)
			case KindStdout, KindStderr:
				_, _, _ = CutSeq(p)
			}
		}
	})
}

// TestReadFirst: the kind that is expected, within the bound, and nothing behind it.
func TestReadFirst(t *testing.T) {
	frame := func(kind Kind, v any) []byte {
		t.Helper()
		var b bytes.Buffer
		if err := NewWriter(&b).JSON(kind, v); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	hello := Hello{Versions: []int{1, 2}, Token: []byte("secret")}
	from := bytes.NewReader(append(frame(KindHello, hello), "what comes next"...))
	got, err := ReadFirst[Hello](from, KindHello)
	if err != nil || string(got.Token) != "secret" || len(got.Versions) != 2 {
		t.Errorf("a hello is read as %+v, %v", got, err)
	}
	if rest, _ := io.ReadAll(from); string(rest) != "what comes next" {
		t.Errorf("behind it is %q", rest)
	}
	for name, bad := range map[string][]byte{
		"another kind": frame(KindWelcome, Welcome{Version: 1}),
		"too long":     frame(KindHello, Hello{Token: make([]byte, MaxHello)}),
		"no JSON":      {byte(KindHello), 0, 0, 0, 1, '{'},
	} {
		if got, err := ReadFirst[Hello](bytes.NewReader(bad), KindHello); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %+v, %v; want an error about the frame", name, got, err)
		}
	}
}
