package core

import (
	"context"
	"io"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/policy"
)

// Processes lists the execs of a sandbox that are on record.
func (s *Service) Processes(ctx context.Context, caller Caller, ref string) ([]cloche.Process, error) {
	return s.opts.Sandboxes.Processes(ctx, caller, ref)
}

// Logs calls fn with what is kept of the output of a sandbox's processes.
func (s *Service) Logs(ctx context.Context, caller Caller, ref string, o cloche.LogOptions, fn func(cloche.LogEntry) error) error {
	if o.Tail < 0 {
		return cloche.Invalid("tail", "a tail of %d lines was asked for", o.Tail).WithHint("0 is everything that is kept")
	}
	if o.Stream != "" && o.Stream != cloche.Stdout && o.Stream != cloche.Stderr {
		return cloche.Invalid("stream", "there are no logs of stream %q", o.Stream).WithHint("stdout, stderr, or leave it out for both")
	}
	return s.opts.Sandboxes.Logs(ctx, caller, ref, o, fn)
}

// StatFile describes one file.
func (s *Service) StatFile(ctx context.Context, caller Caller, ref, path string) (cloche.FileInfo, error) {
	return s.opts.Sandboxes.StatFile(ctx, caller, ref, path)
}

// ListFiles returns one page of a directory.
func (s *Service) ListFiles(ctx context.Context, caller Caller, ref, path, cursor string, limit int) (cloche.FileList, error) {
	if limit < 0 || limit > maxPage {
		return cloche.FileList{}, cloche.Invalid("limit", "a page of %d was asked for", limit).WithHint("0 to %d", maxPage)
	}
	return s.opts.Sandboxes.ListFiles(ctx, caller, ref, path, cursor, limit)
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

// TarOut writes a directory or file as tar.
func (s *Service) TarOut(ctx context.Context, caller Caller, ref, path string, w io.Writer) (cloche.TarReport, error) {
	report, err := s.opts.Sandboxes.TarOut(ctx, caller, ref, path, cloche.TarOutOptions{}, w)
	return report, s.file(ctx, caller, policy.VerbTarOut, ref, path, err)
}

// TarIn unpacks a tar into a directory.
func (s *Service) TarIn(ctx context.Context, caller Caller, ref, path string, r io.Reader) (cloche.TarReport, error) {
	report, err := s.opts.Sandboxes.TarIn(ctx, caller, ref, path, cloche.TarInOptions{}, r)
	return report, s.file(ctx, caller, policy.VerbTarIn, ref, path, err)
}

// file records one use of a file.
func (s *Service) file(ctx context.Context, caller Caller, verb policy.Verb, ref, path string, err error) error {
	return s.done(ctx, caller, verb, ref, details{"path": path}, err)
}
