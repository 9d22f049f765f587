package sandbox

import (
	"context"
	"errors"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
)

// onAgent runs one call on the agent of a sandbox, which is use of it.
func onAgent[T any](ctx context.Context, m *Manager, caller policy.Caller, verb policy.Verb, ref string, call func(context.Context, *agent.Client, api.Sandbox) (T, error)) (T, error) {
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
	if verb == policy.VerbWriteFile {
		// Until it is over, its end is an end that cuts it off.
		s.writes.Add(1)
		defer s.writes.Add(-1)
	}
	out, err := call(ctx, client, s.snapshot())
	if verb == policy.VerbWriteFile && err != nil {
		s.cut.Store(true)
	}
	return out, s.explain(err)
}

// removeCutWrites removes partial files of interrupted writes from the workspace of a sandbox
// without running processes. The writes were cut off by its end, or by an end that this daemon did
// not observe. A private workspace can be read after a stop.
func (m *Manager) removeCutWrites(ctx context.Context, s *live) {
	ws := s.snapshot().Workspace
	if !s.cut.Load() && s.writes.Load() == 0 || ws.Dir != "" || ws.Volume || ws.ReadOnly || ws.Layered || s.isRemoving() && ws.Name == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	dir, err := m.workspaceOf(s)
	if err == nil {
		err = errors.Join(dir.RemoveCutWrites(ctx), dir.Close())
	}
	if err != nil {
		m.log.Warn("remove what writes left that were cut off", "sandbox", s.id, "error", err)
	}
	s.cut.Store(false)
}

// none is the result of a call that has none.
type none = struct{}

// StatFile describes one file; a symlink itself, unless follow.
func (m *Manager) StatFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, follow bool) (api.FileInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, m, caller, policy.VerbStatFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.FileInfo, error) {
		return c.Files(at.FileAccess).Stat(ctx, at.Path, follow)
	})
}

// ListFiles returns one page of a directory.
func (m *Manager) ListFiles(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, cursor string, limit int) (api.FileList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, m, caller, policy.VerbListFiles, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.FileList, error) {
		return c.Files(at.FileAccess).List(ctx, at.Path, cursor, limit)
	})
}

// ReadFile streams length bytes of a file from offset; a negative length is to
// the end. The caller closes the reader.
func (m *Manager) ReadFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	var info api.FileInfo
	s, err := m.find(caller, policy.VerbReadFile, ref)
	if err != nil {
		return nil, info, err
	}
	release := s.use()
	r, err := onAgent(ctx, m, caller, policy.VerbReadFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (r io.ReadCloser, err error) {
		r, info, err = c.Files(at.FileAccess).Read(ctx, at.Path, offset, length)
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
// to the sandbox's user, or to the one of at. Mode 0 keeps what is there, or is 0644.
func (m *Manager) WriteFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (api.FileInfo, error) {
	return onAgent(ctx, m, caller, policy.VerbWriteFile, ref, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (api.FileInfo, error) {
		return c.Files(at.FileAccess).Write(ctx, at.Path, agent.WriteOptions{Mode: mode, User: sb.User, Parents: true}, r)
	})
}

// MakeDir makes a directory, with its parents unless it is to be exactly that.
func (m *Manager) MakeDir(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, m, caller, policy.VerbWriteFile, ref, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (none, error) {
		return none{}, c.Files(at.FileAccess).MakeDir(ctx, at.Path, sb.User, o)
	})
	return err
}

// MoveFile renames a file or directory, both ways with the access of from.
func (m *Manager) MoveFile(ctx context.Context, caller policy.Caller, ref string, from api.FilePlace, to string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, m, caller, policy.VerbMoveFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (none, error) {
		return none{}, c.Files(from.FileAccess).Move(ctx, from.Path, to)
	})
	return err
}

// RemoveFile removes a file, or a directory.
func (m *Manager) RemoveFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error {
	_, err := onAgent(ctx, m, caller, policy.VerbRemoveFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (none, error) {
		return none{}, c.Files(at.FileAccess).Remove(ctx, at.Path, o)
	})
	return err
}
