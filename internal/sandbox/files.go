package sandbox

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// onAgent runs one call on the agent of a sandbox, which is use of it.
func onAgent[T any](ctx context.Context, m *Manager, caller policy.Caller, verb policy.Verb, ref string, call func(context.Context, *agent.Client, cloche.Sandbox) (T, error)) (T, error) {
	var zero T
	s, err := m.find(caller, verb, ref)
	if err != nil {
		return zero, err
	}
	defer s.use()()
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
	s, err := m.find(caller, policy.VerbReadFile, ref)
	if err != nil {
		return nil, info, err
	}
	release := s.use()
	r, err := onAgent(ctx, m, caller, policy.VerbReadFile, ref, func(ctx context.Context, c *agent.Client, _ cloche.Sandbox) (r io.ReadCloser, err error) {
		r, info, err = c.ReadFile(ctx, path, offset, length)
		return r, err
	})
	if err != nil {
		release()
		return nil, info, err
	}
	return &fileReader{ReadCloser: r, release: release}, info, nil
}

// fileReader counts as use of the sandbox until it is closed.
type fileReader struct {
	io.ReadCloser
	release func()
}

// Close implements io.Closer.
func (r *fileReader) Close() error {
	defer r.release()
	return r.ReadCloser.Close()
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
