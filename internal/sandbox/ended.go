package sandbox

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
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/engine"
)

const (
	logsFile      = "logs.ndjson"
	processesFile = "processes.json"
	// maxSavedLogs bounds what is kept of a sandbox's output after its end.
	maxSavedLogs = 16 << 20
)

// watch waits for the end of an instance. It runs once for each, owned by the
// Manager's WaitGroup.
func (m *Manager) watch(s *live, inst engine.Instance) {
	select {
	case <-m.ctx.Done():
		return
	case <-inst.Done():
	}
	end := ending{reason: "the sandbox died"}
	ctx, cancel := context.WithTimeout(m.ctx, callTimeout)
	defer cancel()
	s.mu.Lock()
	seen := s.oomSeen
	s.mu.Unlock()
	if st, ok := stat(ctx, inst); ok && st.OOMKills > seen {
		end.oom, end.reason = true, "the sandbox's memory limit killed it"
	}

	s.mu.Lock()
	asked := s.info.State != cloche.StateRunning
	if !asked {
		stopped := now()
		s.info.StoppedAt = &stopped
		_ = s.move(cloche.StateLost, end.reason)
		if err := s.save(); err != nil {
			m.log.Error("save record", "sandbox", s.id, "error", err)
		}
	} else {
		end.reason = "the sandbox was ended"
	}
	s.finish(end)
	info := s.info
	s.mu.Unlock()
	if asked {
		return // whoever asked cleans up
	}

	m.log.Warn("sandbox lost", "sandbox", info.ID, "reason", end.reason)
	m.opts.Ended(info)
	s.ops.Lock()
	defer s.ops.Unlock()
	_ = m.release(ctx, s) // it has been logged, and a removal tries again
}

// finish marks the instance as ended, once. The caller holds s.mu.
func (s *live) finish(end ending) {
	select {
	case <-s.ended:
	default:
		s.end = end
		close(s.ended)
	}
}

// stat reads what an instance uses, where its engine can say.
func stat(ctx context.Context, inst engine.Instance) (engine.Stat, bool) {
	st, ok := inst.(engine.Statter)
	if !ok {
		return engine.Stat{}, false
	}
	got, err := st.Stat(ctx)
	return got, err == nil
}

// over reports whether nothing runs any more.
func (s *live) over() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// explain turns the error of a call into what really happened when the sandbox
// died under it.
func (s *live) explain(err error) error {
	if err == nil || !s.diedWithin(err) {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return cloche.Errorf(cloche.CodeSandboxLost, "sandbox %s ended during the call: %s", s.info.Name, s.end.reason).WithCause(err)
}

// diedWithin reports whether err is one that the death of the instance causes.
// The connection breaks before the death is seen, so it waits a moment for that.
func (s *live) diedWithin(err error) bool {
	switch cloche.CodeOf(err) {
	case cloche.CodeUnavailable, cloche.CodeSandboxLost, cloche.CodeInternal:
	default:
		return false
	}
	select {
	case <-s.ended:
		return true
	case <-time.After(deathGrace):
		return false
	}
}

// deathGrace is how long after its connection broke the death of an instance
// may go unseen.
const deathGrace = 2 * time.Second

// saveOutput keeps the logs and exit records of a sandbox that is about to end.
// What cannot be read is lost, and that is not worth failing an end for.
func (m *Manager) saveOutput(ctx context.Context, s *live) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return err
	}
	processes, err := client.Processes(ctx)
	if err != nil {
		return err
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
	if err := replaceFile(root, processesFile, data); err != nil {
		return err
	}
	f, err := root.OpenFile(logsFile+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	w := bufio.NewWriter(f)
	var written int
	err = client.Logs(ctx, cloche.LogOptions{}, func(e cloche.LogEntry) error {
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
	if err := w.Flush(); err != nil {
		return err
	}
	return root.Rename(logsFile+".new", logsFile)
}

var errLogsFull = errors.New("as much output as is kept has been saved")

// savedProcesses reads what saveOutput wrote.
func (s *live) savedProcesses() ([]cloche.Process, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, processesFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read saved processes: %w", err)
	}
	var out []cloche.Process
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, fmt.Errorf("decode saved processes: %w", err)
	}
	return out, nil
}

// savedLogs replays what saveOutput wrote.
func (s *live) savedLogs(o cloche.LogOptions, fn func(cloche.LogEntry) error) error {
	f, err := os.Open(filepath.Join(s.dir, logsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read saved logs: %w", err)
	}
	defer f.Close()
	var entries []cloche.LogEntry
	for dec := json.NewDecoder(bufio.NewReader(f)); ; {
		var e cloche.LogEntry
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return fmt.Errorf("decode saved logs: %w", err)
		}
		if (o.ExecID == "" || o.ExecID == e.ExecID) && (o.Stream == "" || o.Stream == e.Stream) {
			entries = append(entries, e)
		}
	}
	for _, e := range tail(entries, o.Tail) {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

// tail keeps the last n lines of what the entries hold; 0 keeps all.
func tail(entries []cloche.LogEntry, n int) []cloche.LogEntry {
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
				e := entries[i]
				e.Offset += int64(cut + 1)
				e.Data = cloche.Bytes(text[cut+1:])
				return append([]cloche.LogEntry{e}, entries[i+1:]...)
			}
		}
	}
	return entries
}
