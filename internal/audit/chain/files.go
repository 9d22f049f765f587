package chain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cloche-dev/cloche/api"
)

// Segments lists the numbers of the older segments of a home, oldest first.
func Segments(home string) ([]int64, error) {
	entries, err := os.ReadDir(filepath.Join(home, Dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list audit segments: %w", err)
	}
	var out []int64
	for _, e := range entries {
		if n, ok := SegmentNumber(e.Name()); ok {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return out, nil
}

// verifyTries is how often a verification begins again because the log was
// rotated under it.
const verifyTries = 5

// errMoved is a file that is gone since it was listed.
var errMoved = errors.New("the log was rotated meanwhile")

// VerifyHome checks the whole log of a home, also while it is being written. An
// error is one of reading; what is wrong with the log is in the report.
func VerifyHome(ctx context.Context, home string, o api.AuditVerifyOptions) (api.AuditReport, error) {
	for try := 1; ; try++ {
		report, err := verifyHome(ctx, home, o)
		if !errors.Is(err, errMoved) || try == verifyTries {
			return report, err
		}
	}
}

func verifyHome(ctx context.Context, home string, o api.AuditVerifyOptions) (api.AuditReport, error) {
	v := newVerifier(o, false)
	// The head is read first: what it names is in the files by then.
	anchor, headErr := ReadAnchor(filepath.Join(home, Dir, HeadName))
	before, err := Segments(home)
	if err != nil {
		return v.report, err
	}
	active, err := os.Open(filepath.Join(home, Active))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return v.report, fmt.Errorf("open audit log: %w", err)
	}
	after, err := Segments(home)
	if active != nil {
		defer active.Close() // only read
	}
	if err != nil {
		return v.report, err
	}
	if !slices.Equal(before, after) {
		return v.report, errMoved
	}
	if headErr == nil {
		v.notYet = append(v.notYet, place{anchor.Head(), "the head"})
	}
	for _, n := range after {
		name := filepath.Join(home, Dir, SegmentName(n))
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			return v.report, errMoved
		}
		if err != nil {
			return v.report, fmt.Errorf("open audit segment: %w", err)
		}
		v.begin(SegmentName(n), n, false)
		if err := errors.Join(v.read(ctx, f), f.Close()); err != nil {
			return v.report, err
		}
		v.report.Segments++
	}
	v.begin(Active, 0, true)
	if active == nil {
		v.problem(v.next(), 0, "there is no %s", Active)
	} else {
		// The number of the file that grows is one more than the last; a gap in the
		// numbers shows in those of the records.
		if n := len(after); n > 0 {
			v.begin(Active, after[n-1]+1, true)
		}
		if err := v.read(ctx, active); err != nil {
			return v.report, err
		}
		v.report.Segments++
	}
	if headErr != nil && (v.started || v.report.ProblemCount == 0) {
		v.problem(v.next(), 0, "the head is missing or broken: what was cut off the end cannot be seen")
	}
	return v.end(), nil
}

// VerifyReader checks lines that were exported. They may begin with any record,
// and end with any that no anchor names.
func VerifyReader(ctx context.Context, name string, r io.Reader, o api.AuditVerifyOptions) (api.AuditReport, error) {
	v := newVerifier(o, true)
	v.begin(name, 0, false)
	if err := v.read(ctx, r); err != nil {
		return v.report, err
	}
	v.report.Segments = 1
	return v.end(), nil
}

// read takes every line of one file. What stands at the end of an older segment
// without a line end is judged by the next.
func (v *verifier) read(ctx context.Context, r io.Reader) error {
	b := bufio.NewReaderSize(r, 2*MaxLine)
	for n := 0; ; n++ {
		if n%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		line, err := b.ReadSlice('\n')
		switch {
		case err == nil:
			v.take(line[:len(line)-1], true)
		case errors.Is(err, bufio.ErrBufferFull):
			// No record is so long.
			v.take(line, true)
		case errors.Is(err, io.EOF):
			if len(line) > 0 {
				v.take(line, false)
			}
			return nil
		default:
			return fmt.Errorf("read audit log: %w", err)
		}
	}
}
