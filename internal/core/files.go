package core

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Logs calls fn with the kept output of a sandbox's processes.
func (s *Service) Logs(ctx context.Context, caller Caller, ref string, o api.LogOptions, fn func(api.LogEntry) error) error {
	if o.Tail < 0 {
		return api.Invalid("tail", "a tail of %d lines was asked for", o.Tail).WithHint("0 is everything that is kept")
	}
	if o.Stream != "" && o.Stream != api.Stdout && o.Stream != api.Stderr {
		return api.Invalid("stream", "there are no logs of stream %q", o.Stream).WithHint("stdout, stderr, or leave it out for both")
	}
	if o.Since != nil && o.ExecID == "" {
		return api.Invalid("since", "an offset means nothing without a process").WithHint("set exec_id, or use since_time")
	}
	if o.WaitMS < 0 || o.WaitMS > maxLogWait.Milliseconds() {
		return api.Invalid("wait_ms", "a wait of %d ms was asked for", o.WaitMS).WithHint("0 to %d", maxLogWait.Milliseconds())
	}
	return s.opts.Sandboxes.Logs(ctx, caller, ref, o, fn)
}

// maxLogWait is the longest long poll of a log.
const maxLogWait = time.Minute

// StatFile returns information about a file. For a symlink, it is about the link itself, unless
// follow is set.
func (s *Service) StatFile(ctx context.Context, caller Caller, ref string, at api.FilePlace, follow bool) (api.FileInfo, error) {
	var info api.FileInfo
	err := checkAccess(at.FileAccess)
	if err == nil {
		info, err = s.opts.Sandboxes.StatFile(ctx, caller, ref, at, follow)
	}
	return info, s.looked(ctx, caller, policy.VerbStatFile, ref, at, err)
}

// ListFiles returns one page of a directory.
func (s *Service) ListFiles(ctx context.Context, caller Caller, ref string, at api.FilePlace, cursor string, limit int) (api.FileList, error) {
	if limit < 0 || limit > maxPage {
		return api.FileList{}, api.Invalid("limit", "a page of %d was asked for", limit).WithHint("0 to %d", maxPage)
	}
	var list api.FileList
	err := checkAccess(at.FileAccess)
	if err == nil {
		list, err = s.opts.Sandboxes.ListFiles(ctx, caller, ref, at, cursor, limit)
	}
	return list, s.looked(ctx, caller, policy.VerbListFiles, ref, at, err)
}

// WatchFiles calls fn with the changes in a directory, first with api.FileReady. It returns nil when the
// directory is removed, and otherwise an error: of fn, the end of ctx or the loss of the sandbox.
func (s *Service) WatchFiles(ctx context.Context, caller Caller, ref string, at api.FilePlace, o api.WatchOptions, fn func(api.FileChange) error) error {
	err := checkAccess(at.FileAccess)
	if err == nil {
		err = s.opts.Sandboxes.WatchFiles(ctx, caller, ref, at, o, fn)
	}
	return s.looked(ctx, caller, policy.VerbListFiles, ref, at, err)
}

// ReadFile streams a file; the caller closes the reader.
func (s *Service) ReadFile(ctx context.Context, caller Caller, ref string, at api.FilePlace, offset, length int64) (io.ReadCloser, api.FileInfo, error) {
	var r io.ReadCloser
	var info api.FileInfo
	err := s.file(ctx, caller, policy.VerbReadFile, ref, at, func() (err error) {
		r, info, err = s.opts.Sandboxes.ReadFile(ctx, caller, ref, at, offset, length)
		return err
	})
	return r, info, err
}

// WriteFile replaces a file with the content of r.
func (s *Service) WriteFile(ctx context.Context, caller Caller, ref string, at api.FilePlace, mode uint32, r io.Reader) (api.FileInfo, error) {
	var info api.FileInfo
	err := s.file(ctx, caller, policy.VerbWriteFile, ref, at, func() (err error) {
		info, err = s.opts.Sandboxes.WriteFile(ctx, caller, ref, at, mode, r)
		return err
	})
	return info, err
}

// MakeDir creates a directory, with its parents unless Exact is set.
func (s *Service) MakeDir(ctx context.Context, caller Caller, ref string, at api.FilePlace, o api.MakeDirOptions) error {
	return s.file(ctx, caller, policy.VerbWriteFile, ref, at, func() error {
		return s.opts.Sandboxes.MakeDir(ctx, caller, ref, at, o)
	})
}

// MoveFile renames a file or directory. The access of from applies to both paths.
func (s *Service) MoveFile(ctx context.Context, caller Caller, ref string, from api.FilePlace, to string) error {
	at := api.FilePlace{Path: to, FileAccess: from.FileAccess}
	return s.file(ctx, caller, policy.VerbMoveFile, ref, at, func() error {
		return s.opts.Sandboxes.MoveFile(ctx, caller, ref, from, to)
	})
}

// RemoveFile removes a file, or a directory.
func (s *Service) RemoveFile(ctx context.Context, caller Caller, ref string, at api.FilePlace, o api.RemoveFileOptions) error {
	if o.Recursive && o.KeepDirs {
		return api.Invalid("keep_dirs", "a directory is to be removed with what is in it, and to be kept").WithHint("set recursive or keep_dirs")
	}
	return s.file(ctx, caller, policy.VerbRemoveFile, ref, at, func() error {
		return s.opts.Sandboxes.RemoveFile(ctx, caller, ref, at, o)
	})
}

// checkAccess refuses an invalid access. Whether the image has the user and the directories is
// checked inside the sandbox.
func checkAccess(a api.FileAccess) error {
	if err := policy.CheckUser("user", a.User); err != nil {
		return err
	}
	if n := len(a.Within) + len(a.ReadWithin); n > api.MaxFileWithin {
		return api.Invalid("within", "%d directories are named", n).WithHint("at most %d", api.MaxFileWithin)
	}
	for i, dir := range slices.Concat(a.Within, a.ReadWithin) {
		field := "within"
		if i >= len(a.Within) {
			field = "read_within"
		}
		if !strings.HasPrefix(dir, "/") || strings.ContainsRune(dir, 0) {
			return api.Invalid(field, "%.200q is not the path of a directory", dir).WithHint("give absolute paths inside the sandbox")
		}
	}
	return nil
}

// looked records a read-only access that a rule of a mount, or the FileAccess, refused. Other
// read-only accesses are not recorded: they change nothing and return no content.
func (s *Service) looked(ctx context.Context, caller Caller, verb policy.Verb, ref string, at api.FilePlace, err error) error {
	if errors.Is(err, api.ErrDenied) {
		return s.done(ctx, caller, verb, ref, placeDetails(at), err)
	}
	return err
}

// file runs one operation that reads or changes the content of files. It is recorded before it
// runs.
func (s *Service) file(ctx context.Context, caller Caller, verb policy.Verb, ref string, at api.FilePlace, do func() error) error {
	d := placeDetails(at)
	if err := checkAccess(at.FileAccess); err != nil {
		return s.done(ctx, caller, verb, ref, d, err)
	}
	return s.inSandbox(ctx, caller, verb, ref, d, do)
}

// inSandbox is recorded for a sandbox that the caller names by ref.
func (s *Service) inSandbox(ctx context.Context, caller Caller, verb policy.Verb, ref string, d details, do func() error) error {
	if _, err := s.opts.Sandboxes.Get(caller, ref); err != nil {
		return s.done(ctx, caller, verb, ref, d, err)
	}
	return s.recorded(ctx, caller, verb, ref, d, do)
}

// placeDetails returns which file was accessed, and as which user.
func placeDetails(at api.FilePlace) details {
	d := details{"path": at.Path}
	if at.User != "" {
		d["user"] = bound(at.User)
	}
	if within := slices.Concat(at.Within, at.ReadWithin); len(within) > 0 {
		d["within"] = bound(strings.Join(within, " "))
	}
	return d
}

// tool returns the sandbox of a file tool, by its ref or by the identity of the request. Operations
// that read or change content are recorded first.
func (s *Service) tool(ctx context.Context, caller Caller, verb policy.Verb, ref string, at api.ToolPlace, do func(id string) error) error {
	d := details{"path": bound(at.Path)}
	if at.Root != "" {
		d["root"] = bound(at.Root)
	}
	sb, err := s.target(caller, ref, at.Naming, s.rules())
	if err != nil {
		return s.refused(ctx, caller, verb, "", d, err)
	}
	if verb == policy.VerbListFiles {
		return s.done(ctx, caller, verb, sb.ID, d, do(sb.ID))
	}
	return s.recorded(ctx, caller, verb, sb.ID, d, func() error { return do(sb.ID) })
}

// ReadText reads lines of a text file for a model.
func (s *Service) ReadText(ctx context.Context, caller Caller, ref string, r api.ToolRead) (out api.ToolText, err error) {
	err = s.tool(ctx, caller, policy.VerbReadFile, ref, r.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.ReadText(ctx, caller, id, r)
		return err
	})
	return out, err
}

// WriteText replaces a text file, or creates it.
func (s *Service) WriteText(ctx context.Context, caller Caller, ref string, w api.ToolWrite) (out api.ToolWritten, err error) {
	err = s.tool(ctx, caller, policy.VerbWriteFile, ref, w.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.WriteText(ctx, caller, id, w)
		return err
	})
	return out, err
}

// EditText replaces text in a file.
func (s *Service) EditText(ctx context.Context, caller Caller, ref string, e api.ToolEdit) (out api.ToolWritten, err error) {
	err = s.tool(ctx, caller, policy.VerbEditFile, ref, e.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.EditText(ctx, caller, id, e)
		return err
	})
	return out, err
}

// Glob finds files by name.
func (s *Service) Glob(ctx context.Context, caller Caller, ref string, g api.ToolGlob) (out api.ToolFiles, err error) {
	err = s.tool(ctx, caller, policy.VerbListFiles, ref, g.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.Glob(ctx, caller, id, g)
		return err
	})
	return out, err
}

// Grep finds lines in text files.
func (s *Service) Grep(ctx context.Context, caller Caller, ref string, g api.ToolGrep) (out api.ToolLines, err error) {
	err = s.tool(ctx, caller, policy.VerbReadFile, ref, g.ToolPlace, func(id string) error {
		out, err = s.opts.Sandboxes.Grep(ctx, caller, id, g)
		return err
	})
	return out, err
}
