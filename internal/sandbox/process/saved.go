package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/hostfile"
)

const (
	logsFile      = "logs.ndjson"
	processesFile = "processes.json"
	// maxSavedLogs bounds what is kept of the output of execs after the end of
	// their sandbox.
	maxSavedLogs = 16 << 20
)

// saveOutput keeps the logs and exit records of a sandbox that is about to end:
// what managed processes wrote last is taken out of it, and execs get a file.
// What cannot be read is lost, and that is not worth failing an end for.
func (m *Runner) saveOutput(ctx context.Context, s *Table) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	m.drainProcesses(ctx, s)
	client, err := s.sandbox.Agent(ctx)
	if err != nil {
		return err
	}
	all, err := client.Processes(ctx)
	if err != nil {
		return err
	}
	processes := []api.Process{}
	for _, p := range all {
		if !s.has(p.ExecID) {
			processes = append(processes, m.o.Redacted(saneExec(p)))
		}
	}
	data, err := json.Marshal(processes)
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(s.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := hostfile.Replace(root, processesFile, data); err != nil {
		return err
	}
	return hostfile.ReplaceWith(root, logsFile, func(f io.Writer) error {
		w := bufio.NewWriter(f)
		var written int
		err := s.execLogs(ctx, client, api.LogOptions{}, false, func(e api.LogEntry) error {
			line, err := json.Marshal(e)
			if err != nil {
				return err
			}
			if written += len(line) + 1; written > maxSavedLogs {
				return errLogsFull
			}
			_, err = w.Write(append(line, '\n'))
			return err
		})
		if err != nil && !errors.Is(err, errLogsFull) {
			return err
		}
		return w.Flush()
	})
}

var errLogsFull = errors.New("as much output as is kept has been saved")

// savedProcesses returns what saveOutput wrote. A file that cannot be read must
// not fail the listing of the managed processes, so it counts as empty.
func (m *Runner) savedProcesses(s *Table) []api.Process {
	out, err := s.readProcesses()
	if err != nil {
		m.o.Logger.Error("list saved processes", "sandbox", s.names.ID, "file", filepath.Join(s.dir, processesFile), "error", err)
		return nil
	}
	return out
}

// readProcesses reads what saveOutput wrote.
func (t *Table) readProcesses() ([]api.Process, error) {
	data, err := os.ReadFile(filepath.Join(t.dir, processesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read saved processes: %w", err)
	}
	var out []api.Process
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("decode saved processes: %w", err)
	}
	for i, p := range out {
		out[i] = saneExec(p)
		if p.Running {
			unknown("its sandbox was ended")(&out[i])
			out[i].Running = false
		}
	}
	return out, nil
}

// savedLogs replays what saveOutput wrote, except for what precedes o.Since.
func (t *Table) savedLogs(o api.LogOptions, fn func(api.LogEntry) error) error {
	f, err := os.Open(filepath.Join(t.dir, logsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read saved logs: %w", err)
	}
	defer f.Close()
	var entries []api.LogEntry
	var end int64
	lines, lost := newSavedLines(f), lostOutput{}
	for {
		e, err := lines.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read saved logs: %w", err)
		}
		if gap, ok := lost.before(e, o.Stream); ok && (o.ExecID == "" || o.ExecID == e.ExecID) && !e.Time.Before(o.SinceTime) {
			entries = append(entries, gap)
		}
		if (o.ExecID == "" || o.ExecID == e.ExecID) && (o.Stream == "" || o.Stream == e.Stream) && !e.Time.Before(o.SinceTime) {
			entries = append(entries, e)
			end = max(end, own(e, o.Stream)+int64(len(e.Data)))
		}
	}
	var since int64
	if o.Since != nil {
		if since = *o.Since; since < 0 {
			since = max(end+since, 0)
		}
	}
	for _, e := range tail(entries, o.Tail) {
		if over := since - own(e, o.Stream); over > 0 {
			if over >= int64(len(e.Data)) {
				continue
			}
			e = from(e, over)
		}
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// savedLines reads the entries of a file of which parts may be damaged.
type savedLines struct{ r *bufio.Reader }

func newSavedLines(f io.Reader) savedLines { return savedLines{bufio.NewReader(f)} }

// next is the next entry that can be read. What cannot is passed over: the offsets of
// those behind it show how much that was.
func (l savedLines) next() (api.LogEntry, error) {
	for {
		line, err := l.r.ReadBytes('\n')
		if err != nil && (len(line) == 0 || !errors.Is(err, io.EOF)) {
			return api.LogEntry{}, err
		}
		var e api.LogEntry
		if json.Unmarshal(line, &e) == nil && e.ExecID != "" && e.Offset >= 0 && e.Position >= 0 && e.Gap >= 0 {
			return e, nil
		}
	}
}

// lostOutput knows where the next entry of each process begins, in both streams
// together under an empty stream.
type lostOutput map[savedStream]int64

type savedStream struct {
	exec   string
	stream api.Stream
}

// before is the gap in a stream, or in both together, in front of an entry of which it
// is not known that something was dropped there.
func (l lostOutput) before(e api.LogEntry, stream api.Stream) (gap api.LogEntry, ok bool) {
	if stream != "" && e.Stream != stream {
		return api.LogEntry{}, false
	}
	key := savedStream{e.ExecID, stream}
	missing := own(e, stream) - l[key]
	l[key] = own(e, stream) + int64(len(e.Data))
	if missing <= 0 || e.Gap > 0 {
		return api.LogEntry{}, false
	}
	gap = e
	gap.Data, gap.Gap = nil, missing
	return gap, true
}

// own is where an entry begins: in the chosen stream, or in both together.
func own(e api.LogEntry, chosen api.Stream) int64 {
	if chosen != "" {
		return e.Offset
	}
	return e.Position
}

// from is what is left of an entry behind its first n bytes.
func from(e api.LogEntry, n int64) api.LogEntry {
	e.Offset, e.Position, e.Data = e.Offset+n, e.Position+n, e.Data[n:]
	return e
}

// tail keeps the last n lines of what the entries hold; 0 keeps all.
func tail(entries []api.LogEntry, n int) []api.LogEntry {
	if n <= 0 {
		return entries
	}
	lines := 0
	for i := len(entries) - 1; i >= 0; i-- {
		text := string(entries[i].Data)
		// A line end at the very end of the output ends the last line; it does
		// not begin another.
		body := text
		if i == len(entries)-1 {
			body = strings.TrimSuffix(text, "\n")
		}
		if got := strings.Count(body, "\n"); lines+got < n {
			lines += got
			continue
		}
		for cut := len(body); ; {
			cut = strings.LastIndexByte(body[:cut], '\n')
			if lines++; lines == n {
				return append([]api.LogEntry{from(entries[i], int64(cut+1))}, entries[i+1:]...)
			}
		}
	}
	return entries
}
