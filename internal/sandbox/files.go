package sandbox

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// onAgent runs one small call on the agent of a sandbox.
func onAgent[T any](ctx context.Context, m *Manager, caller policy.Caller, verb policy.Verb, ref string, call func(context.Context, *agent.Client, cloche.Sandbox) (T, error)) (T, error) {
	var zero T
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return zero, err
	}
	client, err := m.agentOf(ctx, s)
	if err != nil {
		return zero, err
	}
	out, err := call(ctx, client, s.snapshot())
	return out, s.explain(err)
}

// none is the result of a call that has none.
type none = struct{}

// StatFile describes one file; a symlink describes itself.
func (m *Manager) StatFile(ctx context.Context, caller policy.Caller, ref, path string) (cloche.FileInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, m, caller, policy.VerbStatFile, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (cloche.FileInfo, error) {
		return c.Stat(ctx, path)
	})
}

// ListFiles returns one page of a directory.
func (m *Manager) ListFiles(ctx context.Context, caller policy.Caller, ref, path, cursor string, limit int) (cloche.FileList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, m, caller, policy.VerbListFiles, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (cloche.FileList, error) {
		return c.List(ctx, path, cursor, limit)
	})
}

// ReadFile streams length bytes of a file from offset; a negative length is to
// the end. The caller closes the reader.
func (m *Manager) ReadFile(ctx context.Context, caller policy.Caller, ref, path string, offset, length int64) (io.ReadCloser, cloche.FileInfo, error) {
	var info cloche.FileInfo
	r, err := onAgent(ctx, m, caller, policy.VerbReadFile, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (r io.ReadCloser, err error) {
		r, info, err = c.ReadFile(ctx, path, offset, length)
		return r, err
	})
	return r, info, err
}

// WriteFile replaces a file by what r yields. Parents are made; the file belongs
// to the sandbox's user. Mode 0 keeps what is there, or is 0644.
func (m *Manager) WriteFile(ctx context.Context, caller policy.Caller, ref, path string, mode uint32, r io.Reader) (cloche.FileInfo, error) {
	return onAgent(ctx, m, caller, policy.VerbWriteFile, ref, func(ctx context.Context, c *agent.Client, sb cloche.Sandbox) (cloche.FileInfo, error) {
		return c.WriteFile(ctx, path, agent.WriteOptions{Mode: mode, User: sb.User, Parents: true}, r)
	})
}

// MakeDir makes a directory and its parents.
func (m *Manager) MakeDir(ctx context.Context, caller policy.Caller, ref, path string, mode uint32) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, m, caller, policy.VerbWriteFile, ref, func(ctx context.Context, c *agent.Client, sb cloche.Sandbox) (none, error) {
		return none{}, c.MakeDir(ctx, path, mode, sb.User)
	})
	return err
}

// MoveFile renames a file or directory.
func (m *Manager) MoveFile(ctx context.Context, caller policy.Caller, ref, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, m, caller, policy.VerbMoveFile, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (none, error) {
		return none{}, c.Move(ctx, from, to)
	})
	return err
}

// RemoveFile removes a file, or a directory with all that is in it.
func (m *Manager) RemoveFile(ctx context.Context, caller policy.Caller, ref, path string, recursive bool) error {
	_, err := onAgent(ctx, m, caller, policy.VerbRemoveFile, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (none, error) {
		return none{}, c.Remove(ctx, path, recursive)
	})
	return err
}

// TarOut writes a directory or file as tar.
func (m *Manager) TarOut(ctx context.Context, caller policy.Caller, ref, path string, w io.Writer) (cloche.TarReport, error) {
	return onAgent(ctx, m, caller, policy.VerbTarOut, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (cloche.TarReport, error) {
		return c.TarOut(ctx, path, cloche.TarOutOptions{}, w)
	})
}

// TarIn unpacks a tar into a directory, which is made when it is missing.
func (m *Manager) TarIn(ctx context.Context, caller policy.Caller, ref, path string, r io.Reader) (cloche.TarReport, error) {
	return onAgent(ctx, m, caller, policy.VerbTarIn, ref, func(ctx context.Context, c *agent.Client, sb cloche.Sandbox) (cloche.TarReport, error) {
		return c.TarIn(ctx, path, cloche.TarInOptions{Owner: sb.User}, r)
	})
}

// Processes lists the execs of a sandbox that are on record.
func (m *Manager) Processes(ctx context.Context, caller policy.Caller, ref string) ([]cloche.Process, error) {
	s, err := m.find(caller, policy.VerbProcesses, ref)
	if err != nil {
		return nil, err
	}
	if s.over() {
		return s.savedProcesses()
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, m, caller, policy.VerbProcesses, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) ([]cloche.Process, error) {
		return c.Processes(ctx)
	})
}

// Logs calls fn with the output of the sandbox's processes that is kept; of a
// sandbox that has ended, what its agent said last.
func (m *Manager) Logs(ctx context.Context, caller policy.Caller, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error {
	s, err := m.find(caller, policy.VerbLogs, ref)
	if err != nil {
		return err
	}
	if s.over() {
		return s.savedLogs(o, fn)
	}
	_, err = onAgent(ctx, m, caller, policy.VerbLogs, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (none, error) {
		return none{}, c.Logs(ctx, o, fn)
	})
	return err
}
