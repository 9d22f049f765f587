package audit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// due reports whether the segment is to be closed before a record of n bytes.
func (l *Log) due(n int) bool {
	if l.at.size == 0 {
		return false
	}
	return l.at.size+int64(n)+chainRoom > l.opts.SegmentBytes || time.Since(l.at.begun) > l.opts.SegmentAge
}

// rotate closes the segment that grows and begins another. Whatever step it dies
// at, the next find goes on from there.
func (l *Log) rotate() ([]api.AuditFact, error) {
	l.step("sync")
	if err := l.file.Sync(); err != nil {
		return nil, fmt.Errorf("sync audit segment: %w", err)
	}
	l.anchor.Synced = l.at.head.Seq
	l.step("rename")
	to := filepath.Join(l.dir, chain.SegmentName(l.at.segment))
	if err := hostfile.RenameNew(l.activePath(), to); err != nil {
		return nil, fmt.Errorf("close audit segment: %w", err)
	}
	_ = l.file.Close() // it was synced
	l.file = nil
	l.at = position{head: l.at.head}
	return l.anew(false)
}

// anew begins a segment where there is no file that grows.
func (l *Log) anew(lost bool) ([]api.AuditFact, error) {
	l.step("create")
	f, err := openFile(l.activePath(), os.O_RDWR|os.O_APPEND|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return nil, err
	}
	l.file = f
	if l.at.inode, err = hostfile.ID(f); err != nil {
		return nil, fmt.Errorf("stat audit log: %w", err)
	}
	l.at.size, l.at.open = 0, false
	if l.at.head.Seq == 0 && !l.older() {
		l.at.segment, l.at.begun = 1, time.Now()
		return []api.AuditFact{{Kind: api.AuditBegin, Segment: 1}}, nil
	}
	return l.headerFacts(lost)
}

// headerFacts begin a further segment, and say what is missing before it.
func (l *Log) headerFacts(lost bool) ([]api.AuditFact, error) {
	older, err := chain.Segments(l.opts.Home)
	if err != nil {
		return nil, err
	}
	before := chain.Head{Seq: l.anchor.Removed.Seq, Hash: l.anchor.Removed.Hash}
	number := l.anchor.Segment
	if n := len(older); n > 0 {
		number = max(number, older[n-1])
		if before, err = endOfSegment(l.opts.Home, older[n-1]); err != nil {
			return nil, err
		}
	}
	if before.Seq > l.at.head.Seq {
		l.at.head = before
	}
	header := api.AuditFact{Kind: api.AuditSegment, Segment: number + 1}
	if before.Seq < l.at.head.Seq {
		header.First, header.Last = before.Seq+1, l.at.head.Seq
		if l.anchor.Boot != l.boot && before.Seq >= l.anchor.Synced {
			header.Reason = chain.ReasonStopped
		}
		l.opts.Logger.Error("audit log was moved or removed; it was begun anew", "first", header.First, "last", header.Last)
	}
	l.at.segment, l.at.begun = header.Segment, time.Now()
	facts := []api.AuditFact{header}
	if r := l.anchor.Removed; r.Segment > 0 {
		facts = append(facts, api.AuditFact{Kind: api.AuditRemoved, Segment: r.Segment, Last: r.Seq, Hash: r.Hash})
	}
	if lost {
		facts = append(facts, l.anchorLost()...)
	}
	return facts, nil
}

func endOfSegment(home string, n int64) (chain.Head, error) {
	f, err := hostfile.OpenFile(filepath.Join(home, chain.Dir, chain.SegmentName(n)), os.O_RDONLY, 0)
	if err != nil {
		return chain.Head{}, fmt.Errorf("open audit segment: %w", err)
	}
	defer f.Close() // only read
	end, err := readEnd(f)
	if err != nil || !end.found {
		return chain.Head{}, err
	}
	return chain.Head{Seq: end.last.Seq, Hash: end.last.Hash}, nil
}

// closedSegment is an older file and what came after it.
type closedSegment struct {
	number int64
	bytes  int64
	first  int64
	// next is the first record of the file behind it.
	next api.AuditRecord
}

// retain removes what the operator wants no longer, the oldest first and never
// the segment that grows. What goes is on record before it goes.
func (l *Log) retain() {
	if err := l.retainSome(); err != nil {
		l.opts.Logger.Error("remove old audit segments", "error", err)
	}
}

func (l *Log) retainSome() error {
	older, err := chain.Segments(l.opts.Home)
	if err != nil {
		return err
	}
	// An earlier removal may have been interrupted.
	older, err = l.unlink(older, l.anchor.Removed.Segment)
	if err != nil || l.opts.KeepBytes == 0 && l.opts.KeepFor == 0 {
		return err
	}
	closed, err := l.look(older)
	if err != nil {
		return err
	}
	var total int64
	for _, s := range closed {
		total += s.bytes
	}
	n := 0
	for n < len(closed) {
		s := closed[n]
		tooMuch := l.opts.KeepBytes > 0 && total > l.opts.KeepBytes
		tooOld := l.opts.KeepFor > 0 && time.Since(s.next.Time) > l.opts.KeepFor
		if !tooMuch && !tooOld {
			break
		}
		total -= s.bytes
		n++
	}
	if n == 0 {
		return nil
	}
	last := closed[n-1]
	fact := api.AuditFact{
		Kind: api.AuditRemoved, Segment: last.number, First: closed[0].first, Last: last.next.Seq - 1, Hash: last.next.Prev,
	}
	l.step("removed")
	if err := l.write([]api.AuditFact{fact}, nil); err != nil {
		return err
	}
	l.step("unlink")
	_, err = l.unlink(older, last.number)
	return err
}

// unlink removes the segments up to one, and returns the others.
func (l *Log) unlink(older []int64, upTo int64) ([]int64, error) {
	for len(older) > 0 && older[0] <= upTo {
		if err := os.Remove(filepath.Join(l.dir, chain.SegmentName(older[0]))); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return older, fmt.Errorf("remove audit segment: %w", err)
		}
		l.step("unlinked")
		older = older[1:]
	}
	return older, nil
}

// look reads where the older segments begin and end. It stops at one that does
// not say: nothing is removed that cannot be accounted for.
func (l *Log) look(older []int64) ([]closedSegment, error) {
	firsts := make([]api.AuditRecord, 0, len(older)+1)
	var sizes []int64
	for i := range len(older) + 1 {
		path := l.activePath()
		if i < len(older) {
			path = filepath.Join(l.dir, chain.SegmentName(older[i]))
		}
		f, err := hostfile.OpenFile(path, os.O_RDONLY, 0)
		if err != nil {
			return nil, fmt.Errorf("open audit segment: %w", err)
		}
		r, err := firstRecord(f)
		info, serr := f.Stat()
		if err := errors.Join(err, serr, f.Close()); err != nil {
			return nil, fmt.Errorf("read audit segment: %w", err)
		}
		firsts, sizes = append(firsts, r), append(sizes, info.Size())
	}
	out := make([]closedSegment, 0, len(older))
	for i, n := range older {
		out = append(out, closedSegment{number: n, bytes: sizes[i], first: firsts[i].Seq, next: firsts[i+1]})
	}
	return out, nil
}

// firstRecord finds the first record of a file, behind lines of an earlier form.
func firstRecord(r io.Reader) (api.AuditRecord, error) {
	b := bufio.NewReaderSize(r, chain.MaxLine)
	for {
		line, err := b.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return api.AuditRecord{}, err
		}
		if rec, perr := chain.Parse(line[:max(len(line)-1, 0)]); perr == nil {
			return rec, nil
		}
	}
}

// lastRemoved finds the last word on what was removed.
func lastRemoved(home string) (api.AuditFact, bool) {
	older, err := chain.Segments(home)
	if err != nil {
		return api.AuditFact{}, false
	}
	paths := []string{filepath.Join(home, chain.Active)}
	for _, n := range slices.Backward(older) {
		paths = append(paths, filepath.Join(home, chain.Dir, chain.SegmentName(n)))
	}
	for _, p := range paths {
		f, err := hostfile.OpenFile(p, os.O_RDONLY, 0)
		if err != nil {
			continue
		}
		var found api.AuditFact
		b := bufio.NewReaderSize(f, 2*chain.MaxLine)
		for {
			line, err := b.ReadSlice('\n')
			if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
				break
			}
			if r, perr := chain.Parse(line[:len(line)-1]); perr == nil && r.Chain != nil && r.Chain.Kind == api.AuditRemoved {
				found = *r.Chain
			}
		}
		_ = f.Close() // only read
		if found.Segment > 0 {
			return found, true
		}
	}
	return api.AuditFact{}, false
}
