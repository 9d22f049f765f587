package agent

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// WriteOptions say how a file is written.
type WriteOptions struct {
	// Mode holds the permission bits of a new file; 0 is 0644. An existing file
	// keeps its own when Mode is 0.
	Mode uint32
	// User owns what is made; empty is Config.User.
	User string
	// Parents makes missing directories.
	Parents bool
}

// maxListed bounds the files of one page.
const maxListed = 1000

// Files are those of a sandbox as an access has them; of the zero one, all that the
// sandbox allows.
type Files struct {
	c      *Client
	access api.FileAccess
}

// Files returns the files as an access has them.
func (c *Client) Files(a api.FileAccess) Files { return Files{c, a} }

// request completes a request. What is asked for beside the access is in p.
func (f Files) request(req wire.Request, p wire.Place) wire.Request {
	p.User, p.Within, p.ReadWithin = f.access.User, rawPaths(f.access.Within), rawPaths(f.access.ReadWithin)
	if !f.access.IsZero() || p.Follow || p.Exact || p.KeepDirs {
		req.Place = &p
	}
	return req
}

// Stat describes a file; a symlink itself, unless follow.
func (f Files) Stat(ctx context.Context, path string, follow bool) (api.FileInfo, error) {
	return f.c.file(ctx, f.request(wire.Request{Op: wire.OpStat, Path: api.Bytes(path)}, wire.Place{Follow: follow}))
}

// List describes the content of a directory, sorted by name, limit (1 to 1000)
// at a time; cursor is Next of the page before.
func (f Files) List(ctx context.Context, path, cursor string, limit int) (api.FileList, error) {
	if limit <= 0 || limit > maxListed {
		limit = maxListed
	}
	req := wire.Request{Op: wire.OpList, Path: api.Bytes(path), Cursor: api.Bytes(cursor), Limit: limit}
	l, err := ask[api.FileList](ctx, f.c, f.request(req, wire.Place{}))
	if err != nil {
		return api.FileList{}, err
	}
	if len(l.Files) > limit {
		return api.FileList{}, classify(errTooMuch)
	}
	for i := range l.Files {
		l.Files[i] = saneFile(l.Files[i])
	}
	l.Next = cut(l.Next, maxText)
	return l, nil
}

// MakeDir makes a directory, which is owner's unless the access has a user.
func (f Files) MakeDir(ctx context.Context, path, owner string, o api.MakeDirOptions) error {
	req := wire.Request{Op: wire.OpMakeDir, Path: api.Bytes(path), Mode: o.Mode, User: owner}
	_, err := ask[wire.Empty](ctx, f.c, f.request(req, wire.Place{Exact: o.Exact}))
	return err
}

// Move renames a file or directory. What stands at to is replaced when it is a
// file or an empty directory of the same kind.
func (f Files) Move(ctx context.Context, from, to string) error {
	req := wire.Request{Op: wire.OpMove, Path: api.Bytes(from), To: api.Bytes(to)}
	_, err := ask[wire.Empty](ctx, f.c, f.request(req, wire.Place{}))
	return err
}

// Remove removes a file or a directory.
func (f Files) Remove(ctx context.Context, path string, o api.RemoveFileOptions) error {
	req := wire.Request{Op: wire.OpRemove, Path: api.Bytes(path), Recursive: o.Recursive}
	_, err := ask[wire.Empty](ctx, f.c, f.request(req, wire.Place{KeepDirs: o.KeepDirs}))
	return err
}

// Read reads length bytes of a file from offset, the rest of it when length
// is negative. The caller closes the reader, whose read error is the outcome.
func (f Files) Read(ctx context.Context, path string, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	k, file, err := f.openFile(ctx, wire.Request{Op: wire.OpRead, Path: api.Bytes(path), Offset: offset, Length: length})
	if err != nil {
		return nil, api.FileInfo{}, err
	}
	return &dataReader{k: k, left: length}, file.Info, nil
}

// Write writes a file whole or not at all: the new content replaces the old
// one at the end. Anything except a regular file is written in place, and so is a file that the user
// of the access may change and not replace.
func (f Files) Write(ctx context.Context, path string, o WriteOptions, r io.Reader) (api.FileInfo, error) {
	req := wire.Request{Op: wire.OpWrite, Path: api.Bytes(path), Mode: o.Mode, User: o.User, Parents: o.Parents}
	k, err := f.c.open(ctx, f.request(req, wire.Place{}))
	if err != nil {
		return api.FileInfo{}, err
	}
	fr, err := send[wire.FileReply](k, r, nil)
	return saneFile(fr.Info), err
}

// WriteBeside is Write of content that the host writes itself, past the sandbox, as far as it can: open
// gets the file that the content goes to, before it has its name, and returns what writes to it, or nil. The
// rest goes to the agent, which also reports what the host could not write. An agent that does not know
// this is written to as by Write.
func (f Files) WriteBeside(ctx context.Context, path string, o WriteOptions, r io.Reader, open func(temp string, info api.FileInfo) io.WriteCloser) (api.FileInfo, error) {
	if f.c.Version() < wire.BesideSince {
		return f.Write(ctx, path, o, r)
	}
	req := wire.Request{Op: wire.OpWrite, Path: api.Bytes(path), Mode: o.Mode, User: o.User, Parents: o.Parents, Beside: true}
	k, temp, err := f.openFile(ctx, req)
	if err != nil {
		return api.FileInfo{}, err
	}
	var host io.WriteCloser
	if len(temp.Path) > 0 {
		host = open(string(temp.Path), temp.Info)
	}
	fr, err := send[wire.FileReply](k, r, host)
	return saneFile(fr.Info), err
}

// openFile makes a request whose first answer describes a file.
func (f Files) openFile(ctx context.Context, req wire.Request) (*call, wire.FileReply, error) {
	k, err := f.c.open(ctx, f.request(req, wire.Place{}))
	if err != nil {
		return nil, wire.FileReply{}, err
	}
	kind, payload, err := k.next()
	if err == nil && kind != wire.KindReply {
		err = unexpected(kind)
	}
	var file wire.FileReply
	if err == nil {
		if file, err = wire.Decode[wire.FileReply](payload); err != nil {
			err = classify(err)
		}
	}
	if err != nil {
		k.end()
		return nil, wire.FileReply{}, err
	}
	file.Info = saneFile(file.Info)
	return k, file, nil
}

// all are the files with the default access.
func (c *Client) all() Files { return c.Files(api.FileAccess{}) }

// Stat is Files.Stat of a symlink itself, without an access.
func (c *Client) Stat(ctx context.Context, path string) (api.FileInfo, error) {
	return c.all().Stat(ctx, path, false)
}

// List is Files.List without an access.
func (c *Client) List(ctx context.Context, path, cursor string, limit int) (api.FileList, error) {
	return c.all().List(ctx, path, cursor, limit)
}

// MakeDir makes a directory and its missing parents. One that exists is fine.
func (c *Client) MakeDir(ctx context.Context, path string, mode uint32, user string) error {
	return c.all().MakeDir(ctx, path, user, api.MakeDirOptions{Mode: mode})
}

// Move is Files.Move without an access.
func (c *Client) Move(ctx context.Context, from, to string) error { return c.all().Move(ctx, from, to) }

// Remove removes a file, or a directory: with its content when recursive.
func (c *Client) Remove(ctx context.Context, path string, recursive bool) error {
	return c.all().Remove(ctx, path, api.RemoveFileOptions{Recursive: recursive})
}

// ReadFile is Files.Read without an access.
func (c *Client) ReadFile(ctx context.Context, path string, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	return c.all().Read(ctx, path, offset, length)
}

// WriteFile is Files.Write without an access.
func (c *Client) WriteFile(ctx context.Context, path string, o WriteOptions, r io.Reader) (api.FileInfo, error) {
	return c.all().Write(ctx, path, o, r)
}

func (c *Client) file(ctx context.Context, req wire.Request) (api.FileInfo, error) {
	fr, err := ask[wire.FileReply](ctx, c, req)
	if err != nil {
		return api.FileInfo{}, err
	}
	return saneFile(fr.Info), nil
}

// send streams r as data and waits for the answer. An error of r ends the call
// without the end mark, so that the agent discards what it has. An answer that
// comes early, which is a refusal, ends the sending: the agent reads no more. If host is not nil, it gets
// the data first, up to its first error, and is closed before the agent gets any.
func send[T any](k *call, r io.Reader, host io.WriteCloser) (T, error) {
	type answer struct {
		value T
		err   error
	}
	got, over := make(chan answer, 1), make(chan struct{})
	go func() {
		v, err := reply[T](k) // which ends the call, and every write on it
		got <- answer{v, err}
		close(over)
	}()
	last := func() (T, error) {
		a := <-got
		return a.value, a.err
	}
	if host != nil {
		r = &rest{r: r, host: host, over: over}
	}
	buf := make([]byte, wire.MaxData)
	for {
		n, err := fill(r, buf)
		if n > 0 && k.Bytes(wire.KindData, buf[:n]) != nil {
			return last()
		}
		switch err { //nolint:errorlint // see fill
		case nil:
			continue
		case io.EOF: //nolint:errorlint // see fill
			_ = k.End()
			return last()
		}
		k.end()
		<-got
		var zero T
		return zero, fmt.Errorf("read content: %w", err)
	}
}

// rest reads what a host did not write.
type rest struct {
	r    io.Reader
	host io.WriteCloser // nil once it was closed
	over <-chan struct{}
	err  error // of closing host: what it has written is not whole
}

// Read writes to the host first, until the content ends, the host fails or the call is over.
func (t *rest) Read(b []byte) (int, error) {
	for t.host != nil {
		n, err := fill(t.r, b)
		wrote, werr := t.host.Write(b[:n])
		select {
		case <-t.over:
			werr = io.ErrClosedPipe // no call waits for the content
		default:
		}
		if werr == nil && err == nil {
			continue
		}
		t.err = t.host.Close()
		t.host = nil
		if t.err != nil {
			return 0, t.err
		}
		if wrote < n {
			return copy(b, b[wrote:n]), err
		}
		if err != nil {
			return 0, err
		}
	}
	if t.err != nil {
		return 0, t.err
	}
	return t.r.Read(b)
}

// fill reads until buf is full or r ends. Unlike io.ReadFull it keeps the end of
// r apart from an io.ErrUnexpectedEOF of r's own, which is how an upload ends
// whose sender has gone: what came of it must not pass for the whole.
func fill(r io.Reader, buf []byte) (n int, err error) {
	for n < len(buf) && err == nil {
		var m int
		m, err = r.Read(buf[n:])
		n += m
	}
	if n == len(buf) {
		err = nil // the next read returns it
	}
	return n, err
}

// dataReader reads data frames up to the end mark.
type dataReader struct {
	k    *call
	left int64 // negative: as much as comes
	rest []byte
	err  error
}

func (d *dataReader) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.err != nil {
			return 0, d.err
		}
		kind, payload, err := d.k.next()
		switch {
		case err != nil:
			d.err = err
		case kind == wire.KindEnd:
			d.err = io.EOF
		case kind != wire.KindData:
			d.err = unexpected(kind)
		case d.left >= 0 && int64(len(payload)) > d.left:
			d.err = classify(errTooMuch)
		default:
			d.rest = payload
			if d.left >= 0 {
				d.left -= int64(len(payload))
			}
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

func (d *dataReader) Close() error {
	d.k.end()
	return nil
}

// saneFile keeps of a description what an agent may say.
func saneFile(f api.FileInfo) api.FileInfo {
	const maxName, maxPath = 255 * 4, 4096 * 4
	f.Name, f.LinkTarget = cut(f.Name, maxName), cut(f.LinkTarget, maxPath)
	f.User, f.Group = cut(f.User, maxName), cut(f.Group, maxName)
	if len(f.NameBytes) > maxName {
		f.NameBytes = nil
	}
	f.Size, f.Mode = max(f.Size, 0), f.Mode&0o7777
	switch f.Type {
	case api.TypeFile, api.TypeDir, api.TypeSymlink:
	default:
		f.Type = api.TypeOther
	}
	return f
}

func cut(s string, n int) string {
	return strings.ToValidUTF8(s[:min(n, len(s))], "\uFFFD")
}
