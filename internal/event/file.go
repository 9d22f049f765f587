package event

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

// file is the list on disk: a JSON object a line, each an event or a marker.
// A marker says which cursors may have been used, so that none is used again
// when the events that had them are gone.
type file struct {
	root *os.Root
	name string
	boot string

	f     *os.File
	size  int64
	lines int
	// last is the last cursor that was used before the file was opened.
	last int64
	// reserved is up to which cursor events may be used before the next marker.
	reserved int64
	// torn: the end was cut off, or lines in between are damaged.
	torn bool
	// unsaved: events of the list are not in the file.
	unsaved error
	failed  time.Time

	syncing sync.WaitGroup
}

// marker says that cursors up to High were used, and, while this boot of the
// machine lasts, that those up to Reserved may be used without having reached
// the disk.
type marker struct {
	High     int64  `json:"high"`
	Reserved int64  `json:"reserved"`
	Boot     string `json:"boot,omitempty"`
}

var errNoLine = errors.New("not a line of the event log")

const (
	// reserve is how many cursors a marker covers.
	reserve = 1024
	// retryAfter is how long a file that could not be written is left alone.
	retryAfter = time.Second
	// maxCursor keeps a damaged file from making cursors overflow.
	maxCursor = 1 << 53
)

// bootID tells one boot of the machine from another; empty where it is not known.
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// openFile opens the file, makes it if it is missing, and returns its last
// keep events, of one owner not more than each.
func openFile(path string, keep, each int) (_ *file, events []api.Event, err error) {
	d := &file{name: filepath.Base(path), boot: bootID()}
	if d.root, err = os.OpenRoot(filepath.Dir(path)); err != nil {
		return nil, nil, err
	}
	d.f, err = d.open(d.name, os.O_RDWR|os.O_CREATE)
	if err == nil {
		if events, err = d.load(keep, each); err == nil {
			err = d.f.Truncate(d.size)
		}
	}
	if err != nil {
		return nil, nil, errors.Join(err, d.release())
	}
	return d, events, nil
}

// open opens a regular file below the root.
func (d *file) open(name string, flag int) (*os.File, error) {
	if info, err := d.root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %s, not a regular file", name, info.Mode().Type())
	}
	return d.root.OpenFile(name, flag, 0o600)
}

func (d *file) release() error {
	var err error
	if d.f != nil {
		err = d.f.Close()
	}
	return errors.Join(err, d.root.Close())
}

// load reads the whole file, keeping no more than keep events at a time.
func (d *file) load(keep, each int) ([]api.Event, error) {
	var events []api.Event
	var prev int64 // the cursor of the last event: markers may be ahead of those that follow
	var m marker
	in := bufio.NewReaderSize(d.f, maxLine)
	for {
		line, n, err := readLine(in)
		if errors.Is(err, io.EOF) {
			d.torn = d.torn || n > 0
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read: %w", err)
		}
		d.size += n
		d.lines++
		e, err := decodeLine(line, &m)
		if err != nil || e.Cursor != 0 && e.Cursor <= prev {
			d.torn = true
			continue
		}
		d.last = max(d.last, e.Cursor, m.High)
		if e.Cursor == 0 {
			continue
		}
		prev = e.Cursor
		if events = append(events, e); len(events) >= 2*keep {
			events = newest(events, keep, each)
		}
	}
	if m.Boot != d.boot {
		// The machine stopped: what was used up to here may not have been written.
		d.last = max(d.last, m.Reserved)
	}
	return newest(events, keep, each), nil
}

// newest are the last keep events, of one owner not more than each.
func newest(events []api.Event, keep, each int) []api.Event {
	counts := map[string]int{}
	for _, e := range events {
		counts[owner(e)]++
	}
	events = thinned(events, counts, each)
	return slices.Delete(events, 0, max(len(events)-keep, 0))
}

// readLine returns the next line and how long it is with its newline. A line
// that is too long is skipped. At the end n is what stands there without newline.
func readLine(in *bufio.Reader) (line []byte, n int64, err error) {
	line, err = in.ReadSlice('\n')
	n = int64(len(line))
	for errors.Is(err, bufio.ErrBufferFull) {
		var more []byte
		more, err = in.ReadSlice('\n')
		n += int64(len(more))
		line = nil
	}
	return line, n, err
}

// decodeLine reads one line: an event, or a marker into m, and then the event has
// no cursor.
func decodeLine(line []byte, m *marker) (api.Event, error) {
	var both struct {
		api.Event
		marker
	}
	if err := json.Unmarshal(line, &both); err != nil {
		return api.Event{}, fmt.Errorf("%w: %w", errNoLine, err)
	}
	e := both.Event
	switch {
	case e.Cursor == 0 && both.High >= 0 && both.High <= both.Reserved && both.Reserved > 0 && both.Reserved <= maxCursor:
		*m = both.marker
		m.Boot = cut(m.Boot, maxWord)
		return api.Event{}, nil
	case e.Cursor <= 0 || e.Cursor > maxCursor:
		return api.Event{}, errNoLine
	}
	cursor := e.Cursor
	e = bounded(e)
	e.Cursor = cursor
	return e, nil
}

// add writes the newest event of the list. After an error the whole list is
// written anew when the disk works again.
func (d *file) add(e api.Event, list []api.Event, maxEvents int, now time.Time) error {
	switch {
	case d.unsaved != nil && now.Sub(d.failed) < retryAfter:
		return d.unsaved
	case d.unsaved != nil || d.lines >= 2*maxEvents:
		return d.rewrite(list, e.Cursor)
	}
	var lines []byte
	count := 1
	marked := e.Cursor+reserve/2 > d.reserved
	var err error
	if marked {
		lines, err = d.mark(lines, e.Cursor)
		count++
	}
	if err == nil {
		lines, err = appendLine(lines, e)
	}
	if err == nil {
		_, err = d.f.WriteAt(lines, d.size)
	}
	if err != nil {
		d.failed = now
		d.unsaved = errors.Join(fmt.Errorf("write events: %w", err), d.f.Truncate(d.size))
		return d.unsaved
	}
	d.size += int64(len(lines))
	d.lines += count
	if marked {
		d.syncLater()
	}
	return nil
}

// mark appends a marker that covers the cursors after high.
func (d *file) mark(lines []byte, high int64) ([]byte, error) {
	m := marker{High: high - 1, Reserved: high + reserve, Boot: d.boot}
	lines, err := appendLine(lines, m)
	if err == nil {
		d.reserved = m.Reserved
	}
	return lines, err
}

// syncLater syncs beside everything else: a publisher does not wait for a disk.
// The cursors before the middle of a reservation are covered by the one before.
func (d *file) syncLater() {
	f := d.f
	d.syncing.Go(func() { _ = f.Sync() }) // a disk that fails is seen by the next write
}

// rewrite writes the list into a new file that then takes the place of the old
// one, so that at every moment one of the two is whole.
func (d *file) rewrite(list []api.Event, last int64) (err error) {
	defer func() {
		if err != nil {
			d.failed = time.Now()
		}
		d.unsaved = err
	}()
	d.syncing.Wait() // it may be syncing the file that is about to be closed
	temp := d.name + ".new"
	if err := d.root.Remove(temp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rewrite events: %w", err)
	}
	f, err := d.open(temp, os.O_RDWR|os.O_CREATE|os.O_EXCL)
	if err != nil {
		return fmt.Errorf("rewrite events: %w", err)
	}
	out := bufio.NewWriterSize(f, maxLine)
	size, err := d.writeAll(out, list, last)
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		// It lasts: the old file knows less of what is reserved.
		err = hostfile.SettleIn(d.root, f, temp, d.name)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("rewrite events: %w", err), f.Close(), d.root.Remove(temp))
	}
	old := d.f
	d.f, d.size, d.lines, d.torn = f, size, len(list)+1, false
	_ = old.Close() // nothing of it is needed any more
	return nil
}

func (d *file) writeAll(out io.Writer, list []api.Event, last int64) (size int64, err error) {
	line, err := d.mark(nil, last+1)
	for i := 0; err == nil; i++ {
		if _, err = out.Write(line); err != nil {
			break
		}
		size += int64(len(line))
		if i == len(list) {
			break
		}
		line, err = appendLine(line[:0], list[i])
	}
	return size, err
}

// close says that every cursor up to last was used and none beyond, and syncs.
func (d *file) close(list []api.Event, last int64) error {
	d.syncing.Wait()
	var err error
	if d.unsaved != nil {
		err = d.rewrite(list, last)
	}
	if err == nil && d.reserved > 0 {
		var line []byte
		if line, err = appendLine(nil, marker{High: last, Reserved: max(last, 1), Boot: d.boot}); err == nil {
			_, err = d.f.WriteAt(line, d.size)
		}
		err = errors.Join(err, d.f.Sync())
	}
	return errors.Join(err, d.release())
}

// appendLine appends v as one line. JSON has no newline outside of strings, and
// inside of them it is escaped.
func appendLine(b []byte, v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return b, fmt.Errorf("encode: %w", err)
	}
	if len(raw) >= maxLine || bytes.IndexByte(raw, '\n') >= 0 {
		return b, fmt.Errorf("encode: a line of %d bytes", len(raw))
	}
	return append(append(b, raw...), '\n'), nil
}
