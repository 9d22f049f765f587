package chain_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// writer makes lines by hand, in the one chain that they are in.
type writer struct {
	head  chain.Head
	heads []chain.Head // of each record, by its number
}

// add is the line of the next record.
func (w *writer) add(body string) string {
	if w.heads == nil {
		w.heads = []chain.Head{{}}
	}
	line, head := w.head.Seal(nil, []byte(`"time":"2026-01-02T03:04:05Z",`+body))
	w.head, w.heads = head, append(w.heads, head)
	return string(line)
}

func (w *writer) event() string { return w.add(`"tenant":"t","verb":"exec"`) }

func (w *writer) events(n int) string {
	var all strings.Builder
	for range n {
		all.WriteString(w.event())
	}
	return all.String()
}

func (w *writer) fact(fact string) string {
	return w.add(`"tenant":"","verb":"audit","chain":{` + fact + `}`)
}

// skip leaves records out, as if they were written and lost.
func (w *writer) skip(n int) { w.events(n) }

// home writes files, and the head where there is one.
func home(t *testing.T, files map[string]string, head *chain.Anchor) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, chain.Dir), 0o700); err != nil {
		t.Fatal(err)
	}
	if head != nil {
		text, err := head.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		files[chain.HeadName] = string(text)
	}
	for name, text := range files {
		path := filepath.Join(dir, chain.Dir, name)
		if name == chain.Active {
			path = filepath.Join(dir, name)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// findings are a report's, each as "problem" or "note", record, file and line, and words.
func findings(r api.AuditReport) []string {
	var all []string
	for what, list := range map[string][]api.AuditFinding{"problem": r.Problems, "note": r.Notes} {
		for _, f := range list {
			all = append(all, fmt.Sprintf("%s %d %s:%d %s", what, f.Seq, f.File, f.Line, f.Message))
		}
	}
	slices.Sort(all)
	return all
}

const begin = `"kind":"begin","segment":1`

// TestVerify states the whole report of logs of every kind.
func TestVerify(t *testing.T) {
	anchor := func(h chain.Head) *chain.Anchor { return &chain.Anchor{Seq: h.Seq, Hash: h.Hash, Segment: 1} }
	for _, c := range []struct {
		name string
		make func(w *writer) (files map[string]string, head *chain.Anchor)
		o    func(w *writer) api.AuditVerifyOptions

		first, last, records, segments, unchained int64
		want                                      []string
	}{
		{
			name: "whole", first: 1, last: 3, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.events(2)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
		},
		{
			name: "whole in three files", first: 1, last: 7, records: 7, segments: 3,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				one := w.fact(begin) + w.events(1)
				two := w.fact(`"kind":"segment","segment":2`) + w.events(1)
				three := w.fact(`"kind":"segment","segment":3`) + w.events(2)
				return map[string]string{chain.SegmentName(1): one, chain.SegmentName(2): two, chain.Active: three}, anchor(w.head)
			},
		},
		{
			name: "the file that grows is of an older segment", first: 1, last: 4, records: 4, segments: 2,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				one := w.fact(begin) + w.event()
				two := w.fact(`"kind":"segment","segment":1`) + w.event()
				return map[string]string{chain.SegmentName(1): one, chain.Active: two}, anchor(w.head)
			},
			want: []string{"problem 3 audit.log:1 record 3 does not begin segment 2: the file was replaced, or its beginning is gone"},
		},
		{
			name: "an older file that is of a later segment", first: 1, last: 4, records: 4, segments: 3,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				one := w.fact(begin)
				two := w.fact(`"kind":"segment","segment":3`) + w.event()
				three := w.fact(`"kind":"segment","segment":3`)
				return map[string]string{chain.SegmentName(1): one, chain.SegmentName(2): two, chain.Active: three}, anchor(w.head)
			},
			want: []string{"problem 2 00000002.log:1 record 2 does not begin segment 2: the file was replaced, or its beginning is gone"},
		},
		{
			name: "a beginning that is not in the first file", first: 1, last: 3, records: 3, segments: 2,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				one := w.fact(begin)
				two := w.fact(`"kind":"begin","segment":2`) + w.event()
				return map[string]string{chain.SegmentName(1): one, chain.Active: two}, anchor(w.head)
			},
			want: []string{"problem 2 audit.log:1 record 2 does not begin segment 2: the file was replaced, or its beginning is gone"},
		},
		{
			name: "lines and no chain", segments: 1,
			make: func(*writer) (map[string]string, *chain.Anchor) {
				return map[string]string{chain.Active: "one\ntwo\n"}, nil
			},
			want: []string{
				"problem 1 audit.log:0 the head is missing or broken: what was cut off the end cannot be seen",
				"problem 1 audit.log:1 there is no chain: 2 lines are no records",
			},
		},
		{
			name: "nothing but a line without its end", segments: 1,
			make: func(*writer) (map[string]string, *chain.Anchor) {
				return map[string]string{chain.Active: "one"}, &chain.Anchor{}
			},
			want: []string{"note 1 audit.log:1 the last line has no end: a crash, or a record that is being written"},
		},
		{
			name: "no file", want: []string{"problem 1 audit.log:0 there is no audit.log"},
			make: func(*writer) (map[string]string, *chain.Anchor) { return map[string]string{}, nil },
		},
		{
			name: "lines of before the chain", first: 1, last: 2, records: 2, segments: 1, unchained: 2,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				old := "one\ntwo\n"
				text := old + w.fact(fmt.Sprintf(`"kind":"begin","segment":1,"bytes":%d,"lines":2,"hash":"%s"`, len(old), chain.Sum([]byte(old)))) + w.event()
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"note 1 audit.log:1 the 2 lines before record 1 are older than the chain: nothing is known of them but that they are as they were then"},
		},
		{
			name: "lines of before the chain that were changed", first: 1, last: 1, records: 1, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				old := "one\ntwo\n"
				text := "one\ntwx\n" + w.fact(fmt.Sprintf(`"kind":"begin","segment":1,"bytes":%d,"lines":2,"hash":"%s"`, len(old), chain.Sum([]byte(old))))
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 1 audit.log:1 what stands before record 1 is not what it was: 8 bytes were changed"},
		},
		{
			name: "lines of before the chain that are gone", first: 1, last: 1, records: 1, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(`"kind":"begin","segment":1,"bytes":8,"lines":2,"hash":"` + chain.Zero + `"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 1 audit.log:1 8 bytes that record 1 is about are gone"},
		},
		{
			name: "a torn line on record", first: 1, last: 3, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event() + `{"seq":3,"pr` + "\n" + w.fact(fmt.Sprintf(`"kind":"torn","bytes":12,"hash":"%s"`, chain.Sum([]byte(`{"seq":3,"pr`))))
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"note 3 audit.log:3 a crash left a line without its end, which is on record"},
		},
		{
			name: "a torn line on record that was changed", first: 1, last: 2, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + `{"seq":3,"px` + "\n" + w.fact(fmt.Sprintf(`"kind":"torn","bytes":12,"hash":"%s"`, chain.Sum([]byte(`{"seq":3,"pr`))))
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 2 audit.log:2 what stands before record 2 is not what it was: 13 bytes were changed"},
		},
		{
			name: "lines that are none, before a record that was changed", first: 1, last: 4, records: 4, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event() + "junk\njunk\n" + strings.Replace(w.event(), "exec", "exeX", 1) + w.event()
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{
				"problem 3 audit.log:3 record 3 was expected here, and 2 lines are no records (10 bytes)",
				"problem 3 audit.log:5 record 3 was changed: its content does not have its hash",
			},
		},
		{
			name: "records that the stop of the machine lost", first: 1, last: 5, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event()
				w.skip(2)
				text += w.fact(`"kind":"cut","first":3,"last":4,"reason":"` + chain.ReasonStopped + `"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"note 3 audit.log:3 records 3 to 4 were lost when the machine stopped"},
		},
		{
			name: "records that were found gone", first: 1, last: 5, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event()
				w.skip(2)
				text += w.fact(`"kind":"cut","first":3,"last":4`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 3 audit.log:3 records 3 to 4 are gone: this was found on 2026-01-02 03:04:05Z"},
		},
		{
			name: "a log that begins with what it says is gone", first: 4, last: 4, records: 1, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(3)
				return map[string]string{chain.Active: w.fact(`"kind":"cut","first":2,"last":3`)}, anchor(w.head)
			},
			want: []string{
				"note 4 audit.log:1 records 2 to 3 are gone",
				"problem 1 audit.log:0 records 1 to 3 are missing at the beginning, and no record says that they were removed",
			},
		},
		{
			name: "a head that was lost, and records that could not be written", first: 1, last: 3, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.fact(`"kind":"anchor_lost"`) + w.fact(`"kind":"gap","count":7,"since":"2026-01-01T00:00:00Z","reason":"no room"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{
				"note 3 audit.log:3 7 records could not be written from 2026-01-01 00:00:00Z: no room",
				"problem 2 audit.log:2 the head was missing before record 2: what was cut off there cannot be seen",
			},
		},
		{
			name: "the beginning was removed by the rule", first: 4, last: 6, records: 3, segments: 2,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(3)
				two := w.fact(`"kind":"segment","segment":2`)
				three := w.fact(`"kind":"segment","segment":3`) + w.fact(`"kind":"removed","segment":1,"first":1,"last":3,"hash":"`+w.heads[3].Hash+`"`)
				return map[string]string{chain.SegmentName(2): two, chain.Active: three}, anchor(w.head)
			},
			want: []string{"note 3 audit.log:0 records 1 to 3 were removed by the operator's rule"},
		},
		{
			name: "the beginning was to be removed and is partly there", first: 4, last: 6, records: 3, segments: 2,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(3)
				two := w.fact(`"kind":"segment","segment":2`)
				three := w.fact(`"kind":"segment","segment":3`) + w.fact(`"kind":"removed","segment":2,"first":1,"last":4,"hash":"`+w.heads[4].Hash+`"`)
				return map[string]string{chain.SegmentName(2): two, chain.Active: three}, anchor(w.head)
			},
			want: []string{"note 3 audit.log:0 records 1 to 3 were removed by the operator's rule"},
		},
		{
			name: "more is missing at the beginning than was removed", first: 5, last: 6, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(4)
				text := w.fact(`"kind":"segment","segment":3`) + w.fact(`"kind":"removed","segment":1,"first":1,"last":3,"hash":"`+w.heads[3].Hash+`"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 4 audit.log:0 records 4 to 4 are missing at the beginning, and no record says that they were removed"},
		},
		{
			name: "what is there does not follow from what was removed", first: 4, last: 5, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(3)
				text := w.fact(`"kind":"segment","segment":2`) + w.fact(`"kind":"removed","segment":1,"first":1,"last":3,"hash":"`+chain.Zero+`"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 4 audit.log:0 record 4 does not follow from record 3, the last one that was removed"},
		},
		{
			name: "the end is missing", first: 1, last: 2, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event()
				w.skip(2)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			want: []string{"problem 3 audit.log:2 records 3 to 4 are missing at the end: the head names record 4"},
		},
		{
			name: "no head", first: 1, last: 2, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				return map[string]string{chain.Active: w.fact(begin) + w.event()}, nil
			},
			want: []string{"problem 3 audit.log:0 the head is missing or broken: what was cut off the end cannot be seen"},
		},
		{
			name: "anchors of before the first record, of the first, and of another chain", first: 4, last: 5, records: 2, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				w.skip(3)
				text := w.fact(`"kind":"segment","segment":2`) + w.fact(`"kind":"removed","segment":1,"first":1,"last":3,"hash":"`+w.heads[3].Hash+`"`)
				return map[string]string{chain.Active: text}, anchor(w.head)
			},
			o: func(w *writer) api.AuditVerifyOptions {
				return api.AuditVerifyOptions{Anchors: []api.AuditAnchor{{Seq: 0}, {Seq: 3, Hash: w.heads[3].Hash}, {Seq: 4, Hash: w.heads[4].Hash}, {Seq: 5, Hash: chain.Zero}, {Seq: 9, Hash: chain.Zero}}}
			},
			want: []string{
				"note 3 audit.log:0 the anchor that was given is record 3, which is no longer there",
				"note 3 audit.log:0 records 1 to 3 were removed by the operator's rule",
				"problem 5 audit.log:2 record 5 is another one than the anchor that was given says",
				"problem 6 audit.log:2 records 6 to 9 are missing at the end: the anchor that was given names record 9",
			},
		},
		{
			name: "an anchor of a record that is missing in between", first: 1, last: 4, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin)
				text += w.event()
				w.skip(1)
				return map[string]string{chain.Active: text + w.event()}, anchor(w.head)
			},
			o: func(w *writer) api.AuditVerifyOptions {
				return api.AuditVerifyOptions{Anchors: []api.AuditAnchor{{Seq: 3, Hash: w.heads[3].Hash}}}
			},
			want: []string{
				"problem 3 audit.log:3 records 3 to 3 are missing",
				"problem 3 audit.log:0 record 3, which the anchor that was given names, is missing",
			},
		},
		{
			name: "a fault that is accepted", first: 1, last: 4, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event()
				w.skip(1)
				return map[string]string{chain.Active: text + w.event()}, anchor(w.head)
			},
			o:    func(*writer) api.AuditVerifyOptions { return api.AuditVerifyOptions{Accept: 3} },
			want: []string{"note 3 audit.log:3 records 3 to 3 are missing (accepted)"},
		},
		{
			name: "a fault that is not accepted any more", first: 1, last: 4, records: 3, segments: 1,
			make: func(w *writer) (map[string]string, *chain.Anchor) {
				text := w.fact(begin) + w.event()
				w.skip(1)
				return map[string]string{chain.Active: text + w.event()}, anchor(w.head)
			},
			o:    func(*writer) api.AuditVerifyOptions { return api.AuditVerifyOptions{Accept: 2} },
			want: []string{"problem 3 audit.log:3 records 3 to 3 are missing"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &writer{}
			files, head := c.make(w)
			var o api.AuditVerifyOptions
			if c.o != nil {
				o = c.o(w)
			}
			r, err := chain.VerifyHome(t.Context(), home(t, files, head), o)
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(c.want)
			if got := findings(r); !slices.Equal(got, c.want) {
				t.Errorf("found\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(c.want, "\n\t"))
			}
			if r.First != c.first || r.Last != c.last || r.Records != c.records || r.Segments != c.segments || r.UnchainedLines != c.unchained {
				t.Errorf("first %d, last %d, %d records, %d segments, %d unchained; want %d, %d, %d, %d, %d",
					r.First, r.Last, r.Records, r.Segments, r.UnchainedLines, c.first, c.last, c.records, c.segments, c.unchained)
			}
			if r.OK != !slices.ContainsFunc(c.want, func(s string) bool { return strings.HasPrefix(s, "problem") }) || r.ProblemCount != int64(len(r.Problems)) {
				t.Errorf("ok: %v with %d problems", r.OK, r.ProblemCount)
			}
			if c.last > 0 && r.Hash != w.heads[c.last].Hash {
				t.Errorf("hash %s, want %s", r.Hash, w.heads[c.last].Hash)
			}
		})
	}
}

// Files are read in the order of their numbers, however many digits those have, and a file
// without such a name is not read.
func TestSegments(t *testing.T) {
	dir := home(t, map[string]string{
		chain.SegmentName(99_999_999): "", chain.SegmentName(100_000_000): "", chain.SegmentName(7): "",
		chain.SegmentName(0): "", "7.log": "", "00000008.txt": "", "+0000009.log": "", "-0000009.log": "", "000000010.log": "", "x.log": "",
	}, nil)
	if got, err := chain.Segments(dir); err != nil || !slices.Equal(got, []int64{7, 99_999_999, 100_000_000}) {
		t.Errorf("segments %v, %v", got, err)
	}
	if got, err := chain.Segments(t.TempDir()); err != nil || len(got) != 0 {
		t.Errorf("segments of no home: %v, %v", got, err)
	}
}

// What is no anchor is not read as one.
func TestAnchor(t *testing.T) {
	hash := strings.Repeat("a", len(chain.Zero))
	full := chain.Anchor{Seq: 9, Hash: hash, Segment: 3, Boot: "b", Synced: 8}
	text, err := full.Append([]byte("before"))
	if err != nil || !bytes.HasPrefix(text, []byte("before")) || len(text) != len("before")+chain.AnchorSize || text[len(text)-1] != '\n' {
		t.Fatalf("%q, %v", text, err)
	}
	text = text[len("before"):]
	if got, err := chain.ParseAnchor(text); err != nil || got.Head() != full.Head() || got.Synced != 8 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := (chain.Anchor{Boot: strings.Repeat("b", chain.AnchorSize)}).Append(nil); err == nil {
		t.Error("an anchor that is too long was written")
	}
	if _, err := (chain.Anchor{Since: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)}).Append(nil); err == nil {
		t.Error("an anchor with a time that has no text was written")
	}
	pad := func(s string) []byte { return []byte(s + strings.Repeat(" ", chain.AnchorSize-1-len(s)) + "\n") }
	for name, bad := range map[string][]byte{
		"short": text[:len(text)-1], "long": append(bytes.Clone(text), ' '), "no JSON": pad("{"), "empty": nil,
		"a negative number": pad(`{"seq":-1}`), "a hash that is short": pad(`{"seq":1,"hash":"ab"}`), "no hash": pad(`{"seq":1}`), "zeroes": make([]byte, chain.AnchorSize),
	} {
		if got, err := chain.ParseAnchor(bad); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if _, err := chain.ParseAnchor(pad(`{"seq":0,"hash":""}`)); err != nil {
		t.Errorf("the anchor of an empty log: %v", err)
	}
}

// An export may begin and end anywhere, and says so; a log that ends under its reader does
// not.
func TestVerifyReader(t *testing.T) {
	w := &writer{}
	w.skip(2)
	text := w.fact(`"kind":"torn","bytes":5,"hash":"`+chain.Zero+`"`) + w.event()
	r, err := chain.VerifyReader(t.Context(), "x", strings.NewReader(text), api.AuditVerifyOptions{})
	want := []string{"note 3 x:0 this file begins with record 3", "note 3 x:1 5 bytes that the record is about are not in this file"}
	if got := findings(r); err != nil || !r.OK || !slices.Equal(got, want) || r.Segments != 1 || r.Records != 2 {
		t.Errorf("%q, %+v, %v", got, r, err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	cancel(gone)
	if _, err := chain.VerifyReader(ctx, "x", strings.NewReader(text), api.AuditVerifyOptions{}); !errors.Is(err, gone) {
		t.Errorf("a reader whose caller has gone: %v", err)
	}
}
