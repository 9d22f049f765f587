//go:build linux

package audit_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit"
	"github.com/cloche-dev/cloche/internal/audit/chain"
)

// made makes a log of 30 records in several files, closed.
func made(t *testing.T) string {
	t.Helper()
	home := t.TempDir()
	log := openWith(t, audit.Options{Home: home, SegmentBytes: 2 << 10})
	for i := range 30 {
		record(t, log, event(fmt.Sprintf("r%02d", i)))
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return home
}

// edit changes the lines of a file.
func edit(t *testing.T, path string, fn func(lines []string) []string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := fn(strings.SplitAfter(string(data), "\n"))
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// seqAt is the number of the record in a line of a file.
func seqAt(t *testing.T, path string, line int) int64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := chain.Parse(bytes.Split(data, []byte("\n"))[line])
	if err != nil {
		t.Fatal(err)
	}
	return r.Seq
}

// rechained is the lines of a file with other content and a chain that is right in
// itself, as an attacker makes it who knows how.
func rechained(t *testing.T, lines []string, from int) []string {
	t.Helper()
	r, err := chain.Parse([]byte(strings.TrimSuffix(lines[from], "\n")))
	if err != nil {
		t.Fatal(err)
	}
	head := chain.Head{Seq: r.Seq - 1, Hash: r.Prev}
	for i := from; i < len(lines) && lines[i] != ""; i++ {
		_, body, _ := strings.Cut(lines[i], `",`)
		body = strings.Replace(body[:strings.LastIndex(body, `,"hash":`)], `"exec"`, `"gone"`, 1)
		var out []byte
		out, head = head.Seal(nil, []byte(body))
		lines[i] = string(out)
	}
	return lines
}

// TestTampering: each way to change the log is found, and the first bad record is
// named.
func TestTampering(t *testing.T) {
	const file, line = 2, 3 // the record that is bad, where nothing else is said
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, home, path string)
		// line is where the first bad record is, relative to the place.
		line int
		says string
	}{
		{"flipped byte", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = strings.Replace(l[line], `"ok"`, `"pk"`, 1); return l })
		}, 0, "was changed"},
		{"flipped byte in the link", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = strings.Replace(l[line], `"prev":"`, `"prev":"0`, 1); return l })
		}, 0, "was changed"},
		{"flipped byte that is no JSON", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = "[" + l[line][1:]; return l })
		}, 0, "no record"},
		{"deleted line", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return append(l[:line:line], l[line+1:]...) })
		}, 0, "missing"},
		{"swapped lines", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line], l[line+1] = l[line+1], l[line]; return l })
		}, 0, ""},
		{"doubled line", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] += l[line]; return l })
		}, 1, "stands where"},
		{"inserted line", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = "{\"verb\":\"fake\"}\n" + l[line]; return l })
		}, 0, "no record"},
		{"empty line", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = "\n" + l[line]; return l })
		}, 0, "no record"},
		{"joined lines", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { l[line] = strings.TrimSuffix(l[line], "\n"); return l })
		}, 0, "no record"},
		{"cut file", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return l[:line] })
		}, 0, "missing"},
		{"file cut in a line", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return append(l[:line:line], l[line][:20]) })
		}, 0, ""},
		{"header cut off", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return l[1:] })
		}, -line, "missing"},
		{"one record rewritten with its hash", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { rechained(t, l[:line+1], line); return l })
		}, 1, "does not follow"},
		{"removed file", func(t *testing.T, _, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, -line, "missing"},
		{"file replaced by another one", func(t *testing.T, home, path string) {
			data, err := os.ReadFile(filepath.Join(home, chain.Dir, chain.SegmentName(3)))
			if err == nil {
				err = os.WriteFile(path, data, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, -line, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			home := made(t)
			path := filepath.Join(home, chain.Dir, chain.SegmentName(file))
			want := seqAt(t, path, line) + int64(tc.line)
			tc.do(t, home, path)
			r, err := chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{})
			if err != nil || r.OK || len(r.Problems) == 0 || r.Problems[0].Seq != want || !strings.Contains(r.Problems[0].Message, tc.says) {
				t.Fatalf("want record %d, %q: %+v, %v", want, tc.says, r, err)
			}
			if r.ProblemCount > 3 {
				t.Errorf("one fault makes %d problems: %+v", r.ProblemCount, r.Problems)
			}
			// What is recorded later does not heal it.
			record(t, open(t, home), event("later"))
			if r, err = chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{}); err != nil || r.OK || r.Problems[0].Seq != want {
				t.Errorf("later: want record %d: %+v, %v", want, r, err)
			}
			// Known problems can be accepted, and do not hide others.
			if r, err = chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{Accept: want + 60}); err != nil || !r.OK {
				t.Errorf("accepted: %+v, %v", r, err)
			}
		})
	}
}

// TestTamperingWithTheEnd is about the file that grows, whose end the head holds,
// before and after the next record.
func TestTamperingWithTheEnd(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, home, path string)
		bad  int64 // from the last record
		// blind is whether only an anchor that was kept elsewhere shows it.
		blind bool
		// later is where it shows once there is a record behind it: a line that has its
		// own hash is told by the next one.
		later int64
	}{
		{"last line cut off", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return l[:len(l)-2] })
		}, 0, false, 0},
		{"last two lines cut off", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return l[:len(l)-3] })
		}, -1, false, 0},
		{"last line changed", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string {
				l[len(l)-2] = strings.Replace(l[len(l)-2], `"ok"`, `"pk"`, 1)
				return l
			})
		}, 0, false, 0},
		{"last line rewritten", func(t *testing.T, _, path string) {
			edit(t, path, func(l []string) []string { return rechained(t, l, len(l)-2) })
		}, 0, false, 1},
		{"the head removed", func(t *testing.T, home, path string) {
			if err := os.Remove(filepath.Join(home, chain.Dir, chain.HeadName)); err != nil {
				t.Fatal(err)
			}
		}, 1, false, 0},
		{"the end and the head rewritten", func(t *testing.T, home, path string) {
			edit(t, path, func(l []string) []string { return rechained(t, l[:len(l)-1], len(l)-2) })
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
			last, err := chain.Parse(lines[len(lines)-1])
			if err != nil {
				t.Fatal(err)
			}
			head := filepath.Join(home, chain.Dir, chain.HeadName)
			a, err := chain.ReadAnchor(head)
			if err != nil {
				t.Fatal(err)
			}
			a.Seq, a.Hash = last.Seq, last.Hash
			text, err := a.Append(nil)
			if err == nil {
				err = os.WriteFile(head, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, 0, true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			home := made(t)
			before := verify(t, home)
			want := before.Last + tc.bad
			tc.do(t, home, filepath.Join(home, chain.Active))
			o := api.AuditVerifyOptions{}
			r, err := chain.VerifyHome(t.Context(), home, o)
			if tc.blind {
				if err != nil || !r.OK {
					t.Fatalf("%+v, %v", r, err)
				}
				o.Anchors = []api.AuditAnchor{{Seq: before.Last, Hash: before.Hash}}
				r, err = chain.VerifyHome(t.Context(), home, o)
			}
			if err != nil || r.OK || r.Problems[0].Seq != want {
				t.Fatalf("want record %d: %+v, %v", want, r, err)
			}
			record(t, open(t, home), event("later"))
			if r, err = chain.VerifyHome(t.Context(), home, o); err != nil || r.OK || r.Problems[0].Seq != want+tc.later {
				t.Errorf("later: want record %d: %+v, %v", want+tc.later, r, err)
			}
		})
	}
}

// TestEveryFlippedByteIsFound changes bytes all over the log, one at a time.
func TestEveryFlippedByteIsFound(t *testing.T) {
	home := made(t)
	rng := rand.New(rand.NewPCG(1, 2))
	files := []string{filepath.Join(home, chain.Active)}
	for n := int64(1); n <= 3; n++ {
		files = append(files, filepath.Join(home, chain.Dir, chain.SegmentName(n)))
	}
	for range 300 {
		path := files[rng.IntN(len(files))]
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		at := rng.IntN(len(data))
		line := bytes.Count(data[:at], []byte("\n"))
		bad := bytes.Clone(data)
		bad[at] ^= byte(1 + rng.IntN(255))
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{})
		if err := errors.Join(err, os.WriteFile(path, data, 0o600)); err != nil {
			t.Fatal(err)
		}
		if want := seqAt(t, path, line); r.OK || r.Problems[0].Seq != want {
			t.Fatalf("byte %d of %s, record %d: %+v", at, path, want, r)
		}
	}
	verify(t, home)
}

// TestRetention: what is removed is on record, verifies, and stays so when the
// record of it is removed in turn.
func TestRetention(t *testing.T) {
	home := t.TempDir()
	log := openWith(t, audit.Options{Home: home, SegmentBytes: 2 << 10, KeepBytes: 5 << 10})
	for i := range 100 {
		record(t, log, event(fmt.Sprintf("r%03d", i)))
	}
	segments, err := chain.Segments(home)
	if err != nil || len(segments) > 3 || segments[0] < 5 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	r := verify(t, home)
	if r.First == 1 || len(r.Notes) != 1 || !strings.Contains(r.Notes[0].Message, "operator's rule") {
		t.Errorf("%+v", r)
	}
	// One more than the rule said is missed.
	if err := os.Remove(filepath.Join(home, chain.Dir, chain.SegmentName(segments[0]))); err != nil {
		t.Fatal(err)
	}
	if r, err = log.Verify(t.Context(), api.AuditVerifyOptions{}); err != nil || r.OK || r.Problems[0].Seq > r.First {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestRetentionByAge(t *testing.T) {
	home := made(t)
	log := openWith(t, audit.Options{Home: home, KeepFor: time.Nanosecond})
	if s, err := chain.Segments(home); err != nil || len(s) != 0 {
		t.Errorf("segments %v, %v", s, err)
	}
	verify(t, home)
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	// Time alone closes a file too.
	log = openWith(t, audit.Options{Home: home, SegmentAge: time.Nanosecond})
	record(t, log, event("x"))
	record(t, log, event("y"))
	if s, err := chain.Segments(home); err != nil || len(s) != 2 {
		t.Errorf("segments %v, %v", s, err)
	}
	verify(t, home)
}

func TestExportVerifies(t *testing.T) {
	home := made(t)
	log := open(t, home)
	export := func(o api.AuditOptions) []byte {
		var b bytes.Buffer
		err := log.Read(t.Context(), o, nil, func(_ api.AuditRecord, line []byte) error {
			b.Write(line)
			return b.WriteByte('\n')
		})
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	whole := verify(t, home)
	for _, o := range []api.AuditOptions{{}, {After: 7}, {Tail: 5}, {After: 3, Limit: 9}} {
		data := export(o)
		r, err := chain.VerifyReader(t.Context(), "x", bytes.NewReader(data), api.AuditVerifyOptions{})
		if err != nil || !r.OK || r.Records != int64(bytes.Count(data, []byte("\n"))) {
			t.Errorf("%+v: %+v, %v", o, r, err)
		}
		if o.Limit == 0 && r.Hash != whole.Hash || o.Limit > 0 && (r.First != 4 || r.Records != 9) || o.Tail > 0 && r.Records != 5 {
			t.Errorf("%+v: %+v", o, r)
		}
		data[len(data)/2] ^= 1
		if r, err := chain.VerifyReader(t.Context(), "x", bytes.NewReader(data), api.AuditVerifyOptions{}); err != nil || r.OK {
			t.Errorf("changed: %+v, %v", r, err)
		}
	}
	if n := len(bytes.Split(export(api.AuditOptions{Tenant: "else"}), []byte("\n"))); n != 1 {
		t.Errorf("%d lines of a tenant that has none", n)
	}
}

// TestFollow reads over rotations what this and another Log write.
func TestFollow(t *testing.T) {
	home := t.TempDir()
	o := audit.Options{Home: home, SegmentBytes: 2 << 10}
	mine, other := openWith(t, o), openWith(t, o)
	ctx, cancel := context.WithCancelCause(t.Context())
	const n = 60
	done := errors.New("all came")
	got := make(chan error, 1)
	var ids []string
	go func() {
		got <- mine.Read(ctx, api.AuditOptions{Follow: true, Verb: "exec"}, nil, func(r api.AuditRecord, _ []byte) error {
			if ids = append(ids, r.RequestID); len(ids) == n {
				return done
			}
			return nil
		})
	}()
	for i := range n {
		log := mine
		if i%3 == 0 {
			log = other
		}
		record(t, log, event(fmt.Sprint(i)))
	}
	if err := <-got; !errors.Is(err, done) {
		t.Fatal(err)
	}
	for i, id := range ids {
		if id != fmt.Sprint(i) {
			t.Fatalf("record %d is %s", i, id)
		}
	}
	// The end of the context and the end of the log end a reader.
	go func() {
		got <- mine.Read(ctx, api.AuditOptions{Follow: true, After: 1000}, nil, func(api.AuditRecord, []byte) error { return nil })
	}()
	gone := errors.New("gone")
	cancel(gone)
	if err := <-got; !errors.Is(err, gone) {
		t.Error(err)
	}
	if err := mine.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mine.Read(t.Context(), api.AuditOptions{Follow: true}, nil, func(api.AuditRecord, []byte) error { return nil }); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
}

func TestUsage(t *testing.T) {
	home := t.TempDir()
	log := open(t, home)
	for i := range 6 {
		e := event(fmt.Sprint(i))
		e.Verb, e.Tenant = audit.VerbUsage, []string{"a", "b"}[i%2]
		e.Usage = &api.AuditUsed{CPUSeconds: float64(i), GiBSeconds: 2, Seconds: 1, BytesOut: 10, Labels: map[string]string{"team": []string{"x", "y", "y"}[i/2]}, Partial: i == 0}
		record(t, log, e)
	}
	u, err := log.Usage(t.Context(), api.AuditUsageOptions{}, nil)
	if err != nil || len(u.Rows) != 2 || u.Rows[0] != (api.AuditUsageRow{Tenant: "a", Sandboxes: 3, CPUSeconds: 6, GiBSeconds: 6, Seconds: 3, BytesOut: 30, Partial: 1}) {
		t.Errorf("%+v, %v", u, err)
	}
	u, err = log.Usage(t.Context(), api.AuditUsageOptions{Tenant: "b", Label: "team"}, nil)
	if err != nil || len(u.Rows) != 2 || u.Rows[1].Label != "y" || u.Rows[1].CPUSeconds != 8 {
		t.Errorf("%+v, %v", u, err)
	}
	verify(t, home)
}

// TestMachineStopped: what was not synced when the machine stopped is lost on
// record, and is no problem; what was synced and is gone is one.
func TestMachineStopped(t *testing.T) {
	for _, lost := range []int{1, 3} {
		home := made(t)
		head := filepath.Join(home, chain.Dir, chain.HeadName)
		a, err := chain.ReadAnchor(head)
		if err != nil {
			t.Fatal(err)
		}
		a.Boot, a.Synced = "another", a.Seq-2
		text, err := a.Append(nil)
		if err == nil {
			err = os.WriteFile(head, text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		edit(t, filepath.Join(home, chain.Active), func(l []string) []string { return append(l[:len(l)-1-lost:len(l)], "{\"seq") })
		record(t, open(t, home), event("after"))
		r, err := chain.VerifyHome(t.Context(), home, api.AuditVerifyOptions{})
		if err != nil || r.OK != (lost < 3) {
			t.Errorf("%d lost: %+v, %v", lost, r, err)
		}
	}
}

// FuzzVerify: whatever the bytes are, they are judged and no more, and a record is
// only what has its hash.
func FuzzVerify(f *testing.F) {
	line, head := chain.Head{}.Seal(nil, []byte(`"time":"2026-01-02T03:04:05Z","tenant":"","verb":"audit","chain":{"kind":"begin","segment":1}`))
	second, _ := head.Seal(line, []byte(`"time":"2026-01-02T03:04:05Z","tenant":"t","verb":"exec"`))
	f.Add(second)
	f.Add(second[len(line):])
	f.Add([]byte("{\"seq\":1}\n\n"))
	f.Add(append(bytes.Clone(line), `{"torn`...))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := chain.VerifyReader(t.Context(), "x", bytes.NewReader(data), api.AuditVerifyOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if r.OK != (r.ProblemCount == 0) || r.Records > int64(bytes.Count(data, []byte("\n"))) {
			t.Fatalf("%+v", r)
		}
		for l := range bytes.SplitSeq(data, []byte("\n")) {
			if rec, err := chain.Parse(l); err == nil && !bytes.Contains(l, []byte(rec.Hash)) {
				t.Fatalf("%q", l)
			}
		}
	})
}
