package process

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// maxFirstLine limits a first line in bytes.
const maxFirstLine = 64 << 10

// Authorize checks whether a caller may use a verb on a sandbox.
func (m *Runner) Authorize(caller policy.Caller, verb policy.Verb, ref string) error {
	return m.o.Authorize(caller, verb, ref)
}

// FirstLine waits for the first line that a managed process writes to stdout, and returns it without its
// end. The caller may run programs in the sandbox. A process that ends without a line is an error.
func (m *Runner) FirstLine(ctx context.Context, caller policy.Caller, ref, id string) ([]byte, error) {
	s, err := m.o.Find(ctx, caller, policy.VerbExec, ref)
	if err != nil {
		return nil, err
	}
	var line []byte
	err = m.readLogs(ctx, s, api.LogOptions{ExecID: id, Stream: api.Stdout, Follow: true}, func(e api.LogEntry) error {
		if line = append(line, e.Data...); e.End != "" || bytes.IndexByte(line, '\n') >= 0 || len(line) > maxFirstLine {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	line, _, ok := bytes.Cut(line, []byte("\n"))
	if ok && len(line) <= maxFirstLine {
		return line, nil
	}
	p, err := m.Process(ctx, caller, ref, id)
	if err != nil {
		return nil, err
	}
	return nil, api.Errorf(api.CodeUnavailable, "process %s ended before it was ready: %.256s", id, cmp.Or(p.LastStderr, p.Reason, "it wrote nothing to stderr")).
		WithHint("`cloche logs SANDBOX %s` has its output", id)
}

// DialOwn opens a stream as [Runner.DialPort] does, to a program of Cloche's own. The caller may run
// programs in the sandbox.
func (m *Runner) DialOwn(ctx context.Context, caller policy.Caller, ref string, port int) (net.Conn, error) {
	return m.dialPort(ctx, caller, policy.VerbExec, ref, port)
}
