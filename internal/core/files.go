package core

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Logs calls fn with what is kept of the output of a sandbox's processes.
func (s *Service) Logs(ctx context.Context, caller Caller, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error {
	if o.Tail < 0 {
		return cloche.Invalid("tail", "a tail of %d lines was asked for", o.Tail).WithHint("0 is everything that is kept")
	}
	if o.Stream != "" && o.Stream != cloche.Stdout && o.Stream != cloche.Stderr {
		return cloche.Invalid("stream", "there are no logs of stream %q", o.Stream).WithHint("stdout, stderr, or leave it out for both")
	}
	if o.Since != nil && o.ExecID == "" {
		return cloche.Invalid("since", "an offset means nothing without a process").WithHint("set exec_id, or use since_time")
	}
	if o.WaitMS < 0 || o.WaitMS > maxLogWait.Milliseconds() {
		return cloche.Invalid("wait_ms", "a wait of %d ms was asked for", o.WaitMS).WithHint("0 to %d", maxLogWait.Milliseconds())
	}
	return s.opts.Sandboxes.Logs(ctx, caller, ref, o, fn)
}

// maxLogWait is the longest long poll of a log.
const maxLogWait = time.Minute

// StatFile describes one file.
func (s *Service) StatFile(ctx context.Context, caller Caller, ref, path string) (cloche.FileInfo, error) {
	info, err := s.opts.Sandboxes.StatFile(ctx, caller, ref, path)
	return info, s.looked(ctx, caller, policy.VerbStatFile, ref, path, err)
}

// ListFiles returns one page of a directory.
func (s *Service) ListFiles(ctx context.Context, caller Caller, ref, path, cursor string, limit int) (cloche.FileList, error) {
	if limit < 0 || limit > maxPage {
		return cloche.FileList{}, cloche.Invalid("limit", "a page of %d was asked for", limit).WithHint("0 to %d", maxPage)
	}
	list, err := s.opts.Sandboxes.ListFiles(ctx, caller, ref, path, cursor, limit)
	return list, s.looked(ctx, caller, policy.VerbListFiles, ref, path, err)
}

// ReadFile streams a file; the caller closes the reader.
func (s *Service) ReadFile(ctx context.Context, caller Caller, ref, path string, offset, length int64) (io.ReadCloser, cloche.FileInfo, error) {
	r, info, err := s.opts.Sandboxes.ReadFile(ctx, caller, ref, path, offset, length)
	return r, info, s.file(ctx, caller, policy.VerbReadFile, ref, path, err)
}

// WriteFile replaces a file by what r yields.
func (s *Service) WriteFile(ctx context.Context, caller Caller, ref, path string, mode uint32, r io.Reader) (cloche.FileInfo, error) {
	info, err := s.opts.Sandboxes.WriteFile(ctx, caller, ref, path, mode, r)
	return info, s.file(ctx, caller, policy.VerbWriteFile, ref, path, err)
}

// MakeDir makes a directory and its parents.
func (s *Service) MakeDir(ctx context.Context, caller Caller, ref, path string, mode uint32) error {
	return s.file(ctx, caller, policy.VerbWriteFile, ref, path, s.opts.Sandboxes.MakeDir(ctx, caller, ref, path, mode))
}

// MoveFile renames a file or directory.
func (s *Service) MoveFile(ctx context.Context, caller Caller, ref, from, to string) error {
	return s.file(ctx, caller, policy.VerbMoveFile, ref, to, s.opts.Sandboxes.MoveFile(ctx, caller, ref, from, to))
}

// RemoveFile removes a file, or a directory with all that is in it.
func (s *Service) RemoveFile(ctx context.Context, caller Caller, ref, path string, recursive bool) error {
	return s.file(ctx, caller, policy.VerbRemoveFile, ref, path, s.opts.Sandboxes.RemoveFile(ctx, caller, ref, path, recursive))
}

// looked records a look that a rule of a mount refused. Others leave no record:
// they change nothing and bring nothing out.
func (s *Service) looked(ctx context.Context, caller Caller, verb policy.Verb, ref, path string, err error) error {
	if errors.Is(err, cloche.ErrDenied) {
		return s.file(ctx, caller, verb, ref, path, err)
	}
	return err
}

// file records one use of a file.
func (s *Service) file(ctx context.Context, caller Caller, verb policy.Verb, ref, path string, err error) error {
	return s.done(ctx, caller, verb, ref, details{"path": path}, err)
}
