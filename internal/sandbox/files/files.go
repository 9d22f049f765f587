package files

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent"
	"github.com/cloche-dev/cloche/internal/policy"
	"github.com/cloche-dev/cloche/internal/workspace"
)

// Sandbox is what [Files] needs of a sandbox. Its methods are safe for concurrent use.
type Sandbox interface {
	// Agent returns a client of the sandbox's agent, or says why it cannot.
	Agent(ctx context.Context) (*agent.Client, error)
	// Info describes the sandbox.
	Info() api.Sandbox
	// Use counts as use of the sandbox until release is called.
	Use() (release func())
	// Explain says of an error of the agent what became of the sandbox.
	Explain(err error) error
	// Writing says that a file is being written, until done is called with the outcome: an end of the
	// sandbox cuts the write off.
	Writing() (done func(error))
	// Dirs are the mounted directories of this machine in which a change that this machine makes is no
	// event inside.
	Dirs() []workspace.Attached
	// Ended is closed when the sandbox has ended.
	Ended() <-chan struct{}
}

// Files carries out the file operations and file tools of sandboxes. It is safe for concurrent use.
type Files struct {
	find func(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (Sandbox, error)
	// Unpacker returns an executable that plays the role agent.UnpackArgv0. If it is nil or fails, the agents unpack
	// all tars. It is set before the first call.
	Unpacker func() (*os.File, error)

	// hostWatches are the watches of directories of this machine.
	hostWatches atomic.Int32
}

// New returns the file operations of the sandboxes that find returns, to a caller that may use the
// verb.
func New(find func(ctx context.Context, caller policy.Caller, verb policy.Verb, ref string) (Sandbox, error)) *Files {
	return &Files{find: find}
}

// callTimeout bounds a call to an agent.
const callTimeout = 30 * time.Second

// onAgent runs one call on the agent of a sandbox, which is use of it.
func onAgent[T any](ctx context.Context, f *Files, caller policy.Caller, verb policy.Verb, ref string, call func(context.Context, *agent.Client, api.Sandbox) (T, error)) (T, error) {
	return onSandbox(ctx, f, caller, verb, ref, func(ctx context.Context, s Sandbox, c *agent.Client) (T, error) { return call(ctx, c, s.Info()) })
}

// onSandbox is onAgent for a call that needs more of the sandbox.
func onSandbox[T any](ctx context.Context, f *Files, caller policy.Caller, verb policy.Verb, ref string, call func(context.Context, Sandbox, *agent.Client) (T, error)) (out T, err error) {
	s, err := f.find(ctx, caller, verb, ref)
	if err != nil {
		return out, err
	}
	defer s.Use()()
	client, err := s.Agent(ctx)
	if err != nil {
		return out, err
	}
	if verb == policy.VerbWriteFile {
		done := s.Writing()
		defer func() { done(err) }()
	}
	out, err = call(ctx, s, client)
	return out, s.Explain(err)
}

// none is the result of a call that has none.
type none = struct{}

// StatFile describes one file; a symlink itself, unless follow.
func (f *Files) StatFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, follow bool) (api.FileInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, f, caller, policy.VerbStatFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.FileInfo, error) {
		return c.Files(at.FileAccess).Stat(ctx, at.Path, follow)
	})
}

// ListFiles returns one page of a directory.
func (f *Files) ListFiles(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, cursor string, limit int) (api.FileList, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return onAgent(ctx, f, caller, policy.VerbListFiles, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (api.FileList, error) {
		return c.Files(at.FileAccess).List(ctx, at.Path, cursor, limit)
	})
}

// WatchFiles calls fn with the changes in a directory, first with api.FileReady, until fn fails, ctx
// ends or the directory is removed, which is nil. Only the begin of a watch counts as use of the sandbox.
func (f *Files) WatchFiles(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error {
	s, err := f.find(ctx, caller, policy.VerbListFiles, ref)
	if err != nil {
		return err
	}
	release := sync.OnceFunc(s.Use())
	defer release()
	client, err := s.Agent(ctx)
	if err != nil {
		return err
	}
	var own error // of fn
	tell := func(c api.FileChange) error {
		release()
		own = fn(c)
		return own
	}
	watched, err := f.watchHost(ctx, s, client, at, o, tell)
	if !watched {
		err = client.Files(at.FileAccess).Watch(ctx, at.Path, o, tell)
	}
	if own != nil {
		return own
	}
	return s.Explain(err)
}

// ReadFile streams length bytes of a file from offset; a negative length is to
// the end. The caller closes the reader.
func (f *Files) ReadFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	var info api.FileInfo
	s, err := f.find(ctx, caller, policy.VerbReadFile, ref)
	if err != nil {
		return nil, info, err
	}
	release := s.Use()
	r, err := onAgent(ctx, f, caller, policy.VerbReadFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (r io.ReadCloser, err error) {
		r, info, err = c.Files(at.FileAccess).Read(ctx, at.Path, offset, length)
		return r, err
	})
	if err != nil {
		release()
		return nil, info, err
	}
	if host := hostReader(s, at, info, offset, length); host != nil {
		_ = r.Close()
		r = host
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
func (f *Files) WriteFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (api.FileInfo, error) {
	return onSandbox(ctx, f, caller, policy.VerbWriteFile, ref, func(ctx context.Context, s Sandbox, c *agent.Client) (api.FileInfo, error) {
		return write(ctx, s, c, at, agent.WriteOptions{Mode: mode, User: s.Info().User, Parents: true}, r)
	})
}

// MakeDir makes a directory, with its parents unless it is to be exactly that.
func (f *Files) MakeDir(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, f, caller, policy.VerbWriteFile, ref, func(ctx context.Context, c *agent.Client, sb api.Sandbox) (none, error) {
		return none{}, c.Files(at.FileAccess).MakeDir(ctx, at.Path, sb.User, o)
	})
	return err
}

// MoveFile renames a file or directory, both ways with the access of from.
func (f *Files) MoveFile(ctx context.Context, caller policy.Caller, ref string, from api.FilePlace, to string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := onAgent(ctx, f, caller, policy.VerbMoveFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (none, error) {
		return none{}, c.Files(from.FileAccess).Move(ctx, from.Path, to)
	})
	return err
}

// RemoveFile removes a file, or a directory.
func (f *Files) RemoveFile(ctx context.Context, caller policy.Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error {
	_, err := onAgent(ctx, f, caller, policy.VerbRemoveFile, ref, func(ctx context.Context, c *agent.Client, _ api.Sandbox) (none, error) {
		return none{}, c.Files(at.FileAccess).Remove(ctx, at.Path, o)
	})
	return err
}
