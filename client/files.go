package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// MaxReadFile is the largest file that ReadFile returns; OpenFile has no limit.
const MaxReadFile = 64 << 20

// Headers and trailers of the file calls. Each holds JSON.
const (
	headerFileInfo   = "Cloche-File-Info"
	trailerTarReport = "Cloche-Tar-Report"
	trailerError     = "Cloche-Error"
)

// Paths are bytes, as on Linux: a path that is not UTF-8 arrives unchanged.

// Files accesses the files of one sandbox under an api.FileAccess: with the permissions of one of
// its users, or only within some of its directories.
type Files struct {
	c      *Client
	ref    string
	access api.FileAccess
}

// Files returns access to the files of a sandbox under a. The zero FileAccess allows all files.
func (c *Client) Files(ref string, a api.FileAccess) Files { return Files{c, ref, a} }

// at returns the route of an operation with its query.
func (f Files) at(op, path string) (string, url.Values, error) {
	q := url.Values{"path": {path}}
	if f.access.User != "" {
		q.Set("user", f.access.User)
	}
	for name, list := range map[string][]string{"within": f.access.Within, "read_within": f.access.ReadWithin} {
		if len(list) > 0 {
			q[name] = list
		}
	}
	p, err := sandboxPath(f.ref, "/files"+op)
	return p, q, err
}

// Read returns the content of a file, up to MaxReadFile bytes.
func (f Files) Read(ctx context.Context, path string) ([]byte, error) {
	r, _, err := f.Open(ctx, path, 0, -1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, MaxReadFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxReadFile {
		return nil, api.Errorf(api.CodeTooLarge, "file %q is over %d bytes", path, MaxReadFile).
			WithHint("stream it with OpenFile")
	}
	return data, nil
}

// Open streams length bytes of a file from offset. A negative length reads to the end. An io.EOF
// from the reader means that everything was read: a broken connection gives another error. The
// caller closes the reader.
func (f Files) Open(ctx context.Context, path string, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	var info api.FileInfo
	p, q, err := f.at("", path)
	if err != nil {
		return nil, info, err
	}
	if offset != 0 {
		q.Set("offset", strconv.FormatInt(offset, 10))
	}
	if length >= 0 {
		q.Set("length", strconv.FormatInt(length, 10))
	}
	resp, err := f.c.send(ctx, http.MethodGet, p, q, nil, nil)
	if err != nil {
		return nil, info, err
	}
	if err := decode([]byte(resp.Header.Get(headerFileInfo)), &info); err != nil {
		resp.Body.Close()
		return nil, info, err
	}
	return &body{ctx: ctx, c: f.c, resp: resp}, info, nil
}

// Write writes a file atomically, with the permission bits of mode. A mode of 0 keeps the present
// ones, or uses 0644. Missing parent directories are created.
func (f Files) Write(ctx context.Context, path string, data []byte, mode uint32) (api.FileInfo, error) {
	return f.WriteFrom(ctx, path, bytes.NewReader(data), mode)
}

// WriteFrom is Write from a stream. If reading r fails, the file is unchanged.
func (f Files) WriteFrom(ctx context.Context, path string, r io.Reader, mode uint32) (api.FileInfo, error) {
	var info api.FileInfo
	p, q, err := f.at("", path)
	if err != nil {
		return info, err
	}
	setMode(q, mode)
	return info, f.c.upload(ctx, http.MethodPut, p, q, "application/octet-stream", r, &info)
}

func setMode(q url.Values, mode uint32) {
	if mode != 0 {
		q.Set("mode", "0"+strconv.FormatUint(uint64(mode), 8))
	}
}

// Stat returns information about a file. For a symlink, it is about the link itself, unless follow
// is set.
func (f Files) Stat(ctx context.Context, path string, follow bool) (api.FileInfo, error) {
	var info api.FileInfo
	p, q, err := f.at("/stat", path)
	if err != nil {
		return info, err
	}
	if follow {
		q.Set("follow", "true")
	}
	return info, f.c.call(ctx, http.MethodGet, p, q, nil, &info)
}

// Watch calls fn with the changes in a directory, in order, and returns fn's error unchanged. The first
// change has the kind api.FileReady: each later change is reported. Watch returns nil when the directory
// is removed. A connection that breaks ends it with an error, because changes may have been missed.
func (f Files) Watch(ctx context.Context, path string, o api.WatchOptions, fn func(api.FileChange) error) error {
	p, q, err := f.at("/watch", path)
	if err != nil {
		return err
	}
	if o.Recursive {
		q.Set("recursive", "true")
	}
	if o.Entries {
		q.Set("entries", "true")
	}
	return f.c.lines(ctx, http.MethodGet, p, q, nil, func(line []byte) error {
		v, err := decodeLine[api.FileChange](line)
		if err != nil {
			return err
		}
		return fn(v)
	})
}

// List returns one page of a directory, sorted by name. cursor is FileList.Next of the previous
// page. A limit of 0 is the daemon's default.
func (f Files) List(ctx context.Context, path, cursor string, limit int) (api.FileList, error) {
	var l api.FileList
	p, q, err := f.at("/list", path)
	if err != nil {
		return l, err
	}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	return l, f.c.call(ctx, http.MethodGet, p, q, nil, &l)
}

// MakeDir creates a directory and its parents. An existing directory is not an error, unless Exact
// is set.
func (f Files) MakeDir(ctx context.Context, path string, o api.MakeDirOptions) error {
	p, q, err := f.at("/mkdir", path)
	if err != nil {
		return err
	}
	setMode(q, o.Mode)
	if o.Exact {
		q.Set("parents", "false")
	}
	return f.c.call(ctx, http.MethodPost, p, q, nil, nil)
}

// Move renames a file or directory inside a sandbox.
func (f Files) Move(ctx context.Context, from, to string) error {
	p, q, err := f.at("/move", from)
	if err != nil {
		return err
	}
	q.Set("to", to)
	return f.c.call(ctx, http.MethodPost, p, q, nil, nil)
}

// Remove removes a file, or a directory as the options say.
func (f Files) Remove(ctx context.Context, path string, o api.RemoveFileOptions) error {
	p, q, err := f.at("", path)
	if err != nil {
		return err
	}
	for name, set := range map[string]bool{"recursive": o.Recursive, "keep_dirs": o.KeepDirs} {
		if set {
			q.Set(name, "true")
		}
	}
	return f.c.call(ctx, http.MethodDelete, p, q, nil, nil)
}

// all returns Files with the default access.
func (c *Client) all(ref string) Files { return c.Files(ref, api.FileAccess{}) }

// ReadFile is Files.Read with the default access.
func (c *Client) ReadFile(ctx context.Context, ref, path string) ([]byte, error) {
	return c.all(ref).Read(ctx, path)
}

// OpenFile is Files.Open with the default access.
func (c *Client) OpenFile(ctx context.Context, ref, path string, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	return c.all(ref).Open(ctx, path, offset, length)
}

// WriteFile is Files.Write with the default access.
func (c *Client) WriteFile(ctx context.Context, ref, path string, data []byte, mode uint32) (api.FileInfo, error) {
	return c.all(ref).Write(ctx, path, data, mode)
}

// WriteFileFrom is Files.WriteFrom with the default access.
func (c *Client) WriteFileFrom(ctx context.Context, ref, path string, r io.Reader, mode uint32) (api.FileInfo, error) {
	return c.all(ref).WriteFrom(ctx, path, r, mode)
}

// StatFile returns information about a file. For a symlink, it is about the link itself.
func (c *Client) StatFile(ctx context.Context, ref, path string) (api.FileInfo, error) {
	return c.all(ref).Stat(ctx, path, false)
}

// ListFiles is Files.List with the default access.
func (c *Client) ListFiles(ctx context.Context, ref, path, cursor string, limit int) (api.FileList, error) {
	return c.all(ref).List(ctx, path, cursor, limit)
}

// MakeDir creates a directory and its parents, with the permission bits of mode; 0 is 0755. An
// existing directory is not an error.
func (c *Client) MakeDir(ctx context.Context, ref, path string, mode uint32) error {
	return c.all(ref).MakeDir(ctx, path, api.MakeDirOptions{Mode: mode})
}

// MoveFile is Files.Move with the default access.
func (c *Client) MoveFile(ctx context.Context, ref, from, to string) error {
	return c.all(ref).Move(ctx, from, to)
}

// RemoveFile removes a file or a directory. With recursive, it removes a directory with its
// content.
func (c *Client) RemoveFile(ctx context.Context, ref, path string, recursive bool) error {
	return c.all(ref).Remove(ctx, path, api.RemoveFileOptions{Recursive: recursive})
}

// TarOut writes a file or directory to w as a tar stream. The report says what was left out, such
// as sockets, and holds the digest of the archive, which TarOut has verified. On error, w holds
// part of an archive.
func (c *Client) TarOut(ctx context.Context, ref, path string, o api.TarOutOptions, w io.Writer) (api.TarReport, error) {
	var report api.TarReport
	p, err := sandboxPath(ref, "/tar")
	if err != nil {
		return report, err
	}
	q := url.Values{"path": {path}}
	if len(o.Exclude) > 0 {
		q["exclude"] = o.Exclude
	}
	if o.KeepLinks {
		q.Set("links", "keep")
	}
	if o.CopyHardLinks {
		q.Set("hard_links", "copy")
	}
	resp, err := c.send(ctx, http.MethodGet, p, q, nil, nil)
	if err != nil {
		return report, err
	}
	b := &body{ctx: ctx, c: c, resp: resp}
	defer b.Close()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(sum, w), b); err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok {
			return report, e
		}
		return report, api.Errorf(api.CodeCanceled, "write the archive: %w", err)
	}
	if err := decode([]byte(resp.Trailer.Get(trailerTarReport)), &report); err != nil {
		return report, err
	}
	return report, sameDigest(report, sum)
}

// sameDigest returns an error if the report's digest does not match the bytes that were
// transferred.
func sameDigest(report api.TarReport, sum hash.Hash) error {
	if report.SHA256 == "" || report.SHA256 == hex.EncodeToString(sum.Sum(nil)) {
		return nil // a daemon of the previous release sends none
	}
	return brokenAnswer("the archive changed on its way: its digest is another one")
}

// TarIn unpacks a tar stream into a directory, which is created if it is missing. Nothing is
// written outside of it. The report holds the digest of the stream, which TarIn has verified.
func (c *Client) TarIn(ctx context.Context, ref, path string, o api.TarInOptions, r io.Reader) (api.TarReport, error) {
	var report api.TarReport
	p, err := sandboxPath(ref, "/tar")
	if err != nil {
		return report, err
	}
	sum := sha256.New()
	err = c.upload(ctx, http.MethodPut, p, tarInQuery(path, o), "application/x-tar", io.TeeReader(r, sum), &report)
	if err == nil {
		err = sameDigest(report, sum)
	}
	return report, err
}

func tarInQuery(path string, o api.TarInOptions) url.Values {
	q := url.Values{"path": {path}}
	for name, list := range map[string][]string{"exclude": o.Exclude, "keep": o.Keep} {
		if len(list) > 0 {
			q[name] = list
		}
	}
	for name, value := range map[string]string{"owner": o.Owner, "external_symlinks": string(o.Links)} {
		if value != "" {
			q.Set(name, value)
		}
	}
	for name, set := range map[string]bool{"atomic": o.Atomic, "clear": o.Clear} {
		if set {
			q.Set(name, "true")
		}
	}
	return q
}

func (c *Client) upload(ctx context.Context, method, path string, q url.Values, kind string, r io.Reader, out any) error {
	src := &source{r: r}
	resp, err := c.send(ctx, method, path, q, src, http.Header{"Content-Type": {kind}, "Accept": {"application/json"}})
	if rerr := src.failure(); rerr != nil {
		if resp != nil {
			resp.Body.Close()
		}
		return api.Errorf(api.CodeCanceled, "read what was to be sent: %w", rerr)
	}
	if err != nil {
		return err
	}
	defer drop(resp.Body)
	if out == nil {
		return nil
	}
	data, err := readBounded(resp.Body, maxAnswer)
	if err != nil {
		return c.failed(ctx, err)
	}
	return decode(data, out)
}

// download opens a raw answer, which the caller closes. An io.EOF means that everything was read.
func (c *Client) download(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	resp, err := c.send(ctx, http.MethodGet, path, q, nil, nil)
	if err != nil {
		return nil, err
	}
	return &body{ctx: ctx, c: c, resp: resp}, nil
}

// body is the body of a raw answer. It classifies errors. An error of the daemon that arrives as a
// trailer is returned instead of io.EOF.
type body struct {
	ctx  context.Context
	c    *Client
	resp *http.Response
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.resp.Body.Read(p)
	switch {
	case err == nil:
		return n, nil
	case !errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return n, b.c.failed(b.ctx, err)
	}
	if t := b.resp.Trailer.Get(trailerError); t != "" {
		var e api.Error
		if json.Unmarshal([]byte(t), &e) != nil || e.Code == "" {
			return n, brokenAnswer("the daemon ended its answer with an error that is not understood")
		}
		return n, &e
	}
	return n, io.EOF
}

func (b *body) Close() error { return b.resp.Body.Close() }
