package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// maxFindings bounds the problems, and the notes, that a report lists.
const maxFindings = 100

// verifier reads the lines of a log in their order. After a problem it goes on
// from the line that it stands at, so that one fault is one problem.
type verifier struct {
	opts   api.AuditVerifyOptions
	report api.AuditReport
	// partial: the log may begin anywhere, as an export does, without the lines that
	// were never records.
	partial bool

	file string
	line int64
	// segment is set for the first line of a file that should begin with the header
	// of this segment, or with grows of any later one.
	segment int64
	grows   bool

	at      Head // the last record
	started bool
	begun   api.AuditRecord // the first one
	// notYet are places that must be met: the head's and the anchors that were given.
	notYet []place
	// loose are the bytes that are no record since the last one.
	loose stray
	// removed is the last word on what was removed, by its last record.
	removed map[int64]string
}

// place is where the chain must come by.
type place struct {
	Head
	what string
}

// stray is what stands between two records.
type stray struct {
	lines, bytes int64
	at           int64 // its first line
	digest       []byte
	sum          interface {
		Write(p []byte) (int, error)
		Sum(b []byte) []byte
	}
}

func (s *stray) add(line []byte, ended bool, at int64) {
	if s.lines == 0 {
		*s = stray{at: at, sum: sha256.New()}
	}
	s.lines++
	s.bytes += int64(len(line))
	_, _ = s.sum.Write(line) // a hash takes everything
	if ended {
		s.bytes++
		s.digest = s.sum.Sum(nil) // without the last line end, which a torn line did not have
		_, _ = s.sum.Write([]byte("\n"))
	}
}

func (s *stray) whole() string { return hex.EncodeToString(s.sum.Sum(nil)) }

func newVerifier(o api.AuditVerifyOptions, partial bool) *verifier {
	v := &verifier{opts: o, partial: partial, removed: map[int64]string{}}
	for _, a := range o.Anchors {
		v.notYet = append(v.notYet, place{Head{a.Seq, a.Hash}, "the anchor that was given"})
	}
	return v
}

// begin starts a file. A segment of 0 is not known; the file that grows has no
// number in its name, and is of that segment or a later one.
func (v *verifier) begin(file string, segment int64, grows bool) {
	v.file, v.line, v.segment, v.grows = file, 0, segment, grows
}

func (v *verifier) note(seq, line int64, format string, args ...any) {
	if len(v.report.Notes) < maxFindings {
		v.report.Notes = append(v.report.Notes, api.AuditFinding{Seq: seq, File: v.file, Line: line, Message: fmt.Sprintf(format, args...)})
	}
}

func (v *verifier) problem(seq, line int64, format string, args ...any) {
	if seq <= v.opts.Accept {
		v.note(seq, line, format+" (accepted)", args...)
		return
	}
	v.report.ProblemCount++
	if len(v.report.Problems) < maxFindings {
		v.report.Problems = append(v.report.Problems, api.AuditFinding{Seq: seq, File: v.file, Line: line, Message: fmt.Sprintf(format, args...)})
	}
}

// next is the number of the record that should come.
func (v *verifier) next() int64 { return v.at.Seq + 1 }

// take reads one line. Ended is false for a last one without its end.
func (v *verifier) take(line []byte, ended bool) {
	v.line++
	if !ended {
		v.loose.add(line, false, v.line)
		return
	}
	r, err := Parse(line)
	switch {
	case errors.Is(err, errChanged):
		v.stray(nil)
		v.problem(v.next(), v.line, "record %d was changed: %v", v.next(), err)
		v.header(nil)
		// What it claims is all there is to go on with.
		if v.started && r.Seq == v.next() {
			v.at = Head{r.Seq, r.Hash}
			v.report.Records++
		}
		return
	case err != nil:
		v.loose.add(line, true, v.line)
		return
	}
	v.stray(&r)
	v.header(&r)
	v.order(r)
	v.fact(r)
	v.at, v.started = Head{r.Seq, r.Hash}, true
	v.report.Records++
	v.meet()
}

// header wants a file to begin with the record of its segment.
func (v *verifier) header(r *api.AuditRecord) {
	want := v.segment
	v.segment = 0
	if want == 0 || r == nil {
		return
	}
	switch c := r.Chain; {
	case c != nil && c.Kind == api.AuditSegment && (c.Segment == want || v.grows && c.Segment > want):
	case c != nil && c.Kind == api.AuditBegin && want == 1:
	default:
		v.problem(r.Seq, v.line, "record %d does not begin segment %d: the file was replaced, or its beginning is gone", r.Seq, want)
	}
}

// stray judges what stood before r that is no record; nil is the end, or a line
// that explains nothing.
func (v *verifier) stray(r *api.AuditRecord) {
	s := v.loose
	v.loose = stray{}
	var c *api.AuditFact
	if r != nil {
		c = r.Chain
	}
	if s.lines == 0 {
		switch {
		case c == nil || c.Bytes == 0:
		case v.partial:
			v.note(r.Seq, v.line, "%d bytes that the record is about are not in this file", c.Bytes)
		default:
			v.problem(r.Seq, v.line, "%d bytes that record %d is about are gone", c.Bytes, r.Seq)
		}
		return
	}
	switch {
	case c != nil && (c.Kind == api.AuditTorn || c.Kind == api.AuditCut) && c.Bytes == s.bytes-1 && s.digest != nil && c.Hash == hex.EncodeToString(s.digest):
		v.note(r.Seq, s.at, "a crash left a line without its end, which is on record")
	case c != nil && c.Kind == api.AuditBegin && c.Bytes == s.bytes && c.Hash == s.whole():
		v.report.UnchainedLines += s.lines
		v.note(r.Seq, s.at, "the %d lines before record %d are older than the chain: nothing is known of them but that they are as they were then", s.lines, r.Seq)
	case c != nil && (c.Kind == api.AuditTorn || c.Kind == api.AuditBegin && c.Bytes > 0):
		v.problem(v.next(), s.at, "what stands before record %d is not what it was: %d bytes were changed", r.Seq, s.bytes)
	case !v.started && c == nil && r == nil && !v.partial && s.digest != nil:
		v.problem(1, s.at, "there is no chain: %d lines are no records", s.lines)
	default:
		v.problem(v.next(), s.at, "record %d was expected here, and %s (%d bytes)", v.next(), linesAreNone(s.lines), s.bytes)
	}
}

func linesAreNone(n int64) string {
	if n == 1 {
		return "the line is no record"
	}
	return fmt.Sprintf("%d lines are no records", n)
}

// order wants r to be the record after the last one.
func (v *verifier) order(r api.AuditRecord) {
	if !v.started {
		v.begun = r
		v.report.First = r.Seq
		if r.Seq == 1 && r.Prev != Zero {
			v.problem(1, v.line, "record 1 names a record before it")
		}
		return
	}
	want := v.next()
	c := r.Chain
	switch {
	case r.Seq == want && r.Prev == v.at.prev():
	case r.Seq == want:
		v.problem(want, v.line, "record %d does not follow from record %d: one of them was replaced", want, v.at.Seq)
	case r.Seq > want && c != nil && (c.Kind == api.AuditCut || c.Kind == api.AuditSegment) && c.First == want && c.Last == r.Seq-1:
		if c.Reason == ReasonStopped {
			v.note(want, v.line, "records %d to %d were lost when the machine stopped", c.First, c.Last)
		} else {
			v.problem(want, v.line, "records %d to %d are gone: this was found on %s", c.First, c.Last, r.Time.Format("2006-01-02 15:04:05Z07:00"))
		}
	case r.Seq > want:
		v.problem(want, v.line, "records %d to %d are missing", want, r.Seq-1)
	default:
		v.problem(want, v.line, "record %d stands where record %d should be", r.Seq, want)
	}
}

// ReasonStopped is the reason of an AuditCut that the stop of the machine explains.
const ReasonStopped = "the machine stopped before it was on the disk"

// fact reads what the log says of itself.
func (v *verifier) fact(r api.AuditRecord) {
	c := r.Chain
	if c == nil {
		return
	}
	switch c.Kind {
	case api.AuditRemoved:
		v.removed[c.Last] = c.Hash
	case api.AuditGap:
		since := ""
		if c.Since != nil {
			since = " from " + c.Since.Format("2006-01-02 15:04:05Z07:00")
		}
		v.note(r.Seq, v.line, "%d records could not be written%s: %s", c.Count, since, c.Reason)
	case api.AuditAnchorLost:
		v.problem(r.Seq, v.line, "the head was missing before record %d: what was cut off there cannot be seen", r.Seq)
	case api.AuditCut:
		// With a reader that began right here there is nothing to compare with.
		if !v.started {
			v.note(r.Seq, v.line, "records %d to %d are gone", c.First, c.Last)
		}
	}
}

// meet strikes out the places that the chain comes by.
func (v *verifier) meet() {
	v.notYet = slices.DeleteFunc(v.notYet, func(p place) bool {
		if p.Seq != v.at.Seq {
			return false
		}
		if p.Hash != v.at.Hash {
			v.problem(p.Seq, v.line, "record %d is another one than %s says", p.Seq, p.what)
		}
		return true
	})
}

// end judges the whole.
func (v *verifier) end() api.AuditReport {
	v.tail()
	v.beginning()
	for _, p := range v.notYet {
		switch {
		case p.Seq > v.at.Seq:
			v.problem(v.next(), v.line, "records %d to %d are missing at the end: %s names record %d", v.next(), p.Seq, p.what, p.Seq)
		case p.Seq != 0 && p.Seq < v.report.First:
			v.note(p.Seq, 0, "%s is record %d, which is no longer there", p.what, p.Seq)
		case p.Seq != 0:
			v.problem(p.Seq, 0, "record %d, which %s names, is missing", p.Seq, p.what)
		}
	}
	// Problems are found in the order of the lines, except those of the whole log.
	slices.SortStableFunc(v.report.Problems, func(a, b api.AuditFinding) int { return int(min(max(a.Seq-b.Seq, -1), 1)) })
	v.report.Last, v.report.Hash = v.at.Seq, v.at.Hash
	v.report.OK = v.report.ProblemCount == 0
	return v.report
}

// tail judges what stands behind the last record.
func (v *verifier) tail() {
	s := v.loose
	if s.lines == 1 && s.digest == nil && (v.started || s.bytes < MaxLine) {
		v.loose = stray{}
		v.note(v.next(), s.at, "the last line has no end: a crash, or a record that is being written")
		return
	}
	v.stray(nil)
}

// beginning wants what is missing before the first record to have been removed
// on record.
func (v *verifier) beginning() {
	if !v.started || v.begun.Seq == 1 {
		return
	}
	before := v.begun.Seq - 1
	switch hash, ok := v.removed[before]; {
	case ok && hash == v.begun.Prev:
		v.note(before, 0, "records 1 to %d were removed by the operator's rule", before)
		return
	case ok:
		v.problem(v.begun.Seq, 0, "record %d does not follow from record %d, the last one that was removed", v.begun.Seq, before)
		return
	case v.partial:
		v.note(v.begun.Seq, 0, "this file begins with record %d", v.begun.Seq)
		return
	}
	missing := int64(1)
	for last := range v.removed {
		if last >= before {
			// What was to be removed is partly there still, and its chain was checked.
			v.note(before, 0, "records 1 to %d were removed by the operator's rule", before)
			return
		}
		missing = max(missing, last+1)
	}
	v.problem(missing, 0, "records %d to %d are missing at the beginning, and no record says that they were removed", missing, before)
}
