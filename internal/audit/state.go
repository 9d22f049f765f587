package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/audit/chain"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// bootID names this run of the machine; empty where that is not known.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || len(id) > 64 {
		return ""
	}
	return strings.TrimSpace(string(id))
}

func (l *Log) activePath() string { return filepath.Join(l.opts.Home, chain.Active) }

// find makes sure that l.file is the segment that grows and l.at its end, and
// returns what must be recorded of how it was found. It needs the lock.
func (l *Log) find() ([]api.AuditFact, error) {
	lost, err := l.readAnchor()
	if err != nil {
		return nil, err
	}
	id, size, err := hostfile.Look(l.activePath())
	if err == nil && !lost && l.file != nil && id == l.at.inode && size == l.at.size && l.at.head.Seq >= l.anchor.Seq {
		return nil, nil
	}
	return l.recover(lost)
}

// readAnchor reads the head where it is not as this process left it. Lost is true
// when the head is missing or broken.
func (l *Log) readAnchor() (lost bool, err error) {
	if l.head == nil {
		if l.head, err = openFile(filepath.Join(l.dir, chain.HeadName), os.O_RDWR|os.O_CREATE); err != nil {
			return false, err
		}
	}
	var now [chain.AnchorSize]byte
	n, err := l.head.ReadAt(now[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("read audit head: %w", err)
	}
	if l.known != nil && bytes.Equal(l.known, now[:n]) {
		return false, nil
	}
	l.known = nil
	if l.anchor, err = chain.ParseAnchor(now[:n]); err != nil {
		return true, nil
	}
	return false, nil
}

// putAnchor writes the head. The record that it is about is written; a head that
// stays behind is a weaker proof, and no lie.
func (l *Log) putAnchor() {
	l.anchor.Seq, l.anchor.Hash, l.anchor.Segment = l.at.head.Seq, l.at.head.Hash, l.at.segment
	l.anchor.Boot = l.boot
	text, err := l.anchor.Append(l.known[:0])
	if err == nil {
		_, err = l.head.WriteAt(text, 0)
	}
	if err != nil {
		l.known = nil
		l.opts.Logger.Error("write audit head", "error", err)
		return
	}
	l.known = text
}

// recover looks at what another process, a crash or a manual change left.
func (l *Log) recover(lost bool) ([]api.AuditFact, error) {
	base := l.anchor.Head()
	if l.at.head.Seq > base.Seq {
		base = l.at.head
	}
	if l.file != nil {
		_ = l.file.Close() // every write of it was checked
		l.file = nil
	}
	l.at = position{head: base}
	f, err := openFile(l.activePath(), os.O_RDWR|os.O_APPEND)
	if errors.Is(err, fs.ErrNotExist) {
		return l.anew(lost)
	}
	if err != nil {
		return nil, err
	}
	l.file = f
	end, err := readEnd(f)
	if err != nil {
		return nil, err
	}
	l.at.inode, l.at.size, l.at.open = end.inode, end.size, end.open
	if !end.found {
		return l.unchained(end, lost)
	}
	l.at.segment, l.at.begun = l.firstOf(f, end)
	var facts []api.AuditFact
	last := chain.Head{Seq: end.last.Seq, Hash: end.last.Hash}
	if last.Seq > base.Seq {
		l.at.head = last // a crash came between the record and the head
	}
	if last.Seq < base.Seq {
		cut := api.AuditFact{Kind: api.AuditCut, First: last.Seq + 1, Last: base.Seq, Bytes: end.torn, Hash: end.tornHash}
		if l.anchor.Boot != l.boot && last.Seq >= l.anchor.Synced {
			cut.Reason = chain.ReasonStopped
		}
		facts = append(facts, cut)
	} else if end.torn > 0 {
		facts = append(facts, api.AuditFact{Kind: api.AuditTorn, Bytes: end.torn, Hash: end.tornHash})
	}
	if lost {
		facts = append(facts, l.anchorLost()...)
	}
	for _, c := range facts {
		l.opts.Logger.Warn("audit log found damaged", "what", c.Kind, "first", c.First, "last", c.Last, "bytes", c.Bytes)
	}
	return facts, nil
}

// anchorLost is for a chain without its head. What was removed is read again from
// the records.
func (l *Log) anchorLost() []api.AuditFact {
	facts := []api.AuditFact{{Kind: api.AuditAnchorLost}}
	if l.anchor.Removed.Segment == 0 {
		if c, ok := lastRemoved(l.opts.Home); ok {
			facts = append(facts, c)
		}
	}
	return facts
}

// unchained is for a file without a record: an empty one, a log of an earlier
// form, or something else that was put in the place of one.
func (l *Log) unchained(end fileEnd, lost bool) ([]api.AuditFact, error) {
	if l.at.head.Seq > 0 || l.older() {
		facts, err := l.headerFacts(lost)
		if err == nil && end.size > 0 {
			l.opts.Logger.Error("the audit log holds no record where there were some")
		}
		return facts, err
	}
	begin := api.AuditFact{Kind: api.AuditBegin, Segment: 1}
	l.at.segment, l.at.begun = 1, time.Now()
	if end.size > 0 {
		if _, err := l.file.Seek(0, io.SeekStart); err != nil {
			return nil, fmt.Errorf("read old audit log: %w", err)
		}
		h, lines := sha256.New(), &lineCount{}
		n, err := io.Copy(io.MultiWriter(h, lines), l.file)
		if err != nil {
			return nil, fmt.Errorf("read old audit log: %w", err)
		}
		if end.open { // a line end comes before the record
			n++
			_, _ = h.Write([]byte("\n"))
			lines.n++
		}
		begin.Bytes, begin.Lines, begin.Hash = n, lines.n, hex.EncodeToString(h.Sum(nil))
		begin.Reason = "what stands before is older than the chain"
	}
	return []api.AuditFact{begin}, nil
}

// lineCount counts the line ends that are written to it.
type lineCount struct{ n int64 }

func (c *lineCount) Write(p []byte) (int, error) {
	c.n += int64(bytes.Count(p, []byte("\n")))
	return len(p), nil
}

// older reports whether there are closed segments.
func (l *Log) older() bool {
	s, err := chain.Segments(l.opts.Home)
	return err == nil && len(s) > 0
}

// fileEnd is how a segment ends.
type fileEnd struct {
	inode uint64
	size  int64
	found bool // there is a record
	last  api.AuditRecord
	open  bool // the last line has no end
	// torn is the length of an open last line that is no record.
	torn     int64
	tornHash string
}

// endBlock is how much is read at a time, backwards.
const endBlock = 4 * chain.MaxLine

// readEnd finds the last record of a file.
func readEnd(f *os.File) (fileEnd, error) {
	var e fileEnd
	info, err := f.Stat()
	if err != nil {
		return e, fmt.Errorf("stat audit log: %w", err)
	}
	e.size = info.Size()
	if e.inode, err = hostfile.ID(f); err != nil {
		return e, fmt.Errorf("stat audit log: %w", err)
	}
	buf := make([]byte, endBlock)
	for until := e.size; until > 0 && !e.found; {
		from := max(until-endBlock, 0)
		block := buf[:until-from]
		if _, err := f.ReadAt(block, from); err != nil {
			return e, fmt.Errorf("read end of audit log: %w", err)
		}
		if until == e.size {
			block = e.takeOpen(block)
		}
		lines := bytes.Split(block, []byte("\n"))
		first := 0
		if from > 0 {
			first = 1 // it may begin in the block before
		}
		for i := len(lines) - 1; i >= first && !e.found; i-- {
			if r, err := chain.Parse(lines[i]); err == nil {
				e.found, e.last = true, r
			}
		}
		if from == 0 {
			break
		}
		// The line that begins before this block is read with the next one.
		until = from + int64(min(len(lines[0]), chain.MaxLine))
	}
	return e, nil
}

// takeOpen cuts a last line without its end off the last block of a file. A
// whole record that lacks only its end stays, and is found later.
func (e *fileEnd) takeOpen(block []byte) []byte {
	if len(block) == 0 || block[len(block)-1] == '\n' {
		return block
	}
	e.open = true
	i := bytes.LastIndexByte(block, '\n') + 1
	line := block[i:]
	if _, err := chain.Parse(line); err == nil {
		return block
	}
	e.torn, e.tornHash = int64(len(line)), chain.Sum(line)
	return block[:i]
}

// firstOf tells which segment a file is, and since when.
func (l *Log) firstOf(f *os.File, end fileEnd) (segment int64, begun time.Time) {
	if r, err := readFirst(f); err == nil && r.Chain != nil && r.Chain.Segment > 0 {
		return r.Chain.Segment, r.Time
	}
	// A log of an earlier form was taken in, or the beginning is gone.
	return max(l.anchor.Segment, 1), end.last.Time
}

// readFirst reads the first line of a file as a record.
func readFirst(f io.ReaderAt) (api.AuditRecord, error) {
	buf := make([]byte, chain.MaxLine)
	n, err := f.ReadAt(buf, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return api.AuditRecord{}, fmt.Errorf("read beginning of audit segment: %w", err)
	}
	line, _, ok := bytes.Cut(buf[:n], []byte("\n"))
	if !ok {
		return api.AuditRecord{}, fmt.Errorf("read beginning of audit segment: %w", io.ErrUnexpectedEOF)
	}
	r, err := chain.Parse(line)
	if err != nil {
		return r, fmt.Errorf("read beginning of audit segment: %w", err)
	}
	return r, nil
}
