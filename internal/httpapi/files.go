package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/cloche-dev/cloche/internal/core"

	"github.com/cloche-dev/cloche/api"
)

// files serves the routes of files, archives and file tools.
type files struct{ *Server }

func (s files) routes() []route {
	return []route{
		{http.MethodGet, "/v1/sandboxes/{ref}/files", "read_file", paceTransfer, s.readFile},
		{http.MethodPut, "/v1/sandboxes/{ref}/files", "write_file", paceTransfer, s.writeFile},
		{http.MethodDelete, "/v1/sandboxes/{ref}/files", "remove_file", paceCall, s.removeFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/stat", "stat_file", paceCall, s.statFile},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/list", "list_files", paceCall, s.listFiles},
		{http.MethodGet, "/v1/sandboxes/{ref}/files/watch", "list_files", paceWait, s.watchFiles},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/move", "move_file", paceCall, s.moveFile},
		{http.MethodPost, "/v1/sandboxes/{ref}/files/mkdir", "write_file", paceCall, s.makeDir},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/read", "read_file", paceCall, tool(s.Server, s.core.ReadText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/write", "write_file", paceCall, tool(s.Server, s.core.WriteText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/edit", "edit_file", paceCall, tool(s.Server, s.core.EditText)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/glob", "list_files", paceCall, tool(s.Server, s.glob)},
		{http.MethodPost, "/v1/sandboxes/{ref}/tools/grep", "read_file", paceCall, tool(s.Server, s.grep)},
		{http.MethodGet, "/v1/sandboxes/{ref}/tar", "tar_out", paceTransfer, s.tarOut},
		{http.MethodPut, "/v1/sandboxes/{ref}/tar", "tar_in", paceTransfer, s.tarIn},
	}
}

// copyBuffer is how much of a file is in hand at once.
const copyBuffer = 128 << 10

func (s files) readFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at := q.place()
	offset := q.integer("offset", 0, 0, math.MaxInt64)
	length := q.integer("length", -1, 0, math.MaxInt64)
	if err := q.end(); err != nil {
		return err
	}
	f, info, err := s.core.ReadFile(r.Context(), r.caller, r.ref(), at, offset, length)
	if err != nil {
		return err
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set(headerFileInfo, headerJSON(info))
	out := newRawWriter(w)
	defer out.close()
	var src io.Reader = f
	n := int64(-1)
	// Files that a kernel generates when they are read also have a size of 0.
	if info.Type == api.TypeFile && info.Size > 0 {
		n = max(0, info.Size-offset)
		if length >= 0 {
			n = min(n, length)
		}
		h.Set("Content-Length", strconv.FormatInt(n, 10))
		src = io.LimitReader(f, n)
	} else {
		h.Set("Trailer", trailerError)
	}
	sent, err := io.CopyBuffer(out, src, make([]byte, copyBuffer))
	switch {
	case err == nil && n >= 0 && sent < n:
		return errors.New("read file: it became shorter while it was read")
	case err == nil:
		return nil
	case !out.begun || n >= 0 || !readsTrailers(r):
		return fmt.Errorf("read file: %w", err)
	}
	h.Set(trailerError, headerJSON(toWire(err, r)))
	return nil
}

func (s files) writeFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, mode := q.place(), q.mode()
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/octet-stream"); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	info, err := s.core.WriteFile(r.Context(), r.caller, r.ref(), at, mode, in)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s files) removeFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, o := q.place(), api.RemoveFileOptions{Recursive: q.boolean("recursive"), KeepDirs: q.boolean("keep_dirs")}
	return done(w, q.end(), func() error {
		return s.core.RemoveFile(r.Context(), r.caller, r.ref(), at, o)
	})
}

func (s files) statFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, follow := q.place(), q.boolean("follow")
	if err := q.end(); err != nil {
		return err
	}
	info, err := s.core.StatFile(r.Context(), r.caller, r.ref(), at, follow)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

// watchFiles answers with the changes in a directory, a line each, until the directory is removed.
func (s files) watchFiles(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, o := q.place(), api.WatchOptions{Recursive: q.boolean("recursive"), Entries: q.boolean("entries")}
	if err := q.end(); err != nil {
		return err
	}
	return s.lines(w, r, true, func(ctx context.Context, lines *lineWriter) error {
		return s.core.WatchFiles(ctx, r.caller, r.ref(), at, o, func(c api.FileChange) error { return lines.write(c) })
	})
}

func (s files) listFiles(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, cursor, limit := q.place(), q.str("cursor"), int(q.integer("limit", 0, 0, 1000))
	if err := q.end(); err != nil {
		return err
	}
	l, err := s.core.ListFiles(r.Context(), r.caller, r.ref(), at, cursor, limit)
	if err != nil {
		return err
	}
	l.Files = nonNil(l.Files)
	writeJSON(w, http.StatusOK, l)
	return nil
}

func (s files) moveFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	from, to := q.place(), q.path("to")
	return done(w, q.end(), func() error { return s.core.MoveFile(r.Context(), r.caller, r.ref(), from, to) })
}

func (s files) makeDir(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, o := q.place(), api.MakeDirOptions{Mode: q.mode(), Exact: !q.choice("parents", true)}
	return done(w, q.end(), func() error { return s.core.MakeDir(r.Context(), r.caller, r.ref(), at, o) })
}

// done does a verb that has no answer but that it was done.
func done(w http.ResponseWriter, err error, do func() error) error {
	if err == nil {
		err = do()
	}
	if err == nil {
		w.WriteHeader(http.StatusNoContent)
	}
	return err
}

// tool serves a file tool, whose request and answer are both JSON.
func tool[In, Out any](s *Server, do func(ctx context.Context, caller core.Caller, ref string, in In) (Out, error)) handler {
	return func(w http.ResponseWriter, r request) error {
		var in In
		if err := queryOf(r).end(); err != nil {
			return err
		}
		if err := s.readJSON(w, r, &in); err != nil {
			return err
		}
		out, err := do(r.Context(), r.caller, r.ref(), in)
		if err != nil {
			return err
		}
		writeJSON(w, http.StatusOK, out)
		return nil
	}
}

// glob and grep answer with lists, which are never null.
func (s files) glob(ctx context.Context, caller core.Caller, ref string, g api.ToolGlob) (api.ToolFiles, error) {
	l, err := s.core.Glob(ctx, caller, ref, g)
	l.Files = nonNil(l.Files)
	return l, err
}

func (s files) grep(ctx context.Context, caller core.Caller, ref string, g api.ToolGrep) (api.ToolLines, error) {
	l, err := s.core.Grep(ctx, caller, ref, g)
	l.Matches = nonNil(l.Matches)
	return l, err
}

// maxTrailer is the size of trailers that common HTTP clients read, less space for the other
// trailers.
const maxTrailer = 3 << 10

func (s files) tarOut(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	o := api.TarOutOptions{Exclude: q.all("exclude"), KeepLinks: q.oneOf("links", "relative", "keep") == "keep", CopyHardLinks: q.oneOf("hard_links", "keep", "copy") == "copy"}
	if err := q.end(); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/x-tar")
	h.Set("Trailer", trailerTarReport+", "+trailerError)
	out := newRawWriter(w)
	defer out.close()
	report, err := s.core.TarOut(r.Context(), r.caller, r.ref(), path, o, out)
	switch {
	case err == nil:
		h.Set(trailerTarReport, reportTrailer(report))
		return nil
	case !out.begun:
		return err
	case r.Context().Err() != nil:
		return err // the client has disconnected and cannot read a trailer
	case !readsTrailers(r):
		return fmt.Errorf("read archive: %w", err)
	}
	h.Set(trailerError, headerJSON(toWire(err, r)))
	return nil
}

func (s files) tarIn(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	path := q.path("path")
	o := api.TarInOptions{
		Exclude: q.all("exclude"), Owner: q.str("owner"), Atomic: q.boolean("atomic"), Clear: q.boolean("clear"), Keep: q.all("keep"),
		Links: api.ExternalLinks(q.oneOf("external_symlinks", string(api.LinksKeep), string(api.LinksDrop), string(api.LinksReject))),
	}
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/x-tar"); err != nil {
		return err
	}
	in := newRawReader(w, r)
	defer in.close()
	report, err := s.core.TarIn(r.Context(), r.caller, r.ref(), path, o, in)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, report)
	return nil
}

// reportTrailer names as many of the skipped entries as a trailer holds, and
// counts the others in a last one.
func reportTrailer(report api.TarReport) string {
	all := report.Skipped
	for n := len(all); ; n /= 2 {
		report.Skipped = all[:n:n]
		if n < len(all) {
			report.Skipped = append(report.Skipped, api.TarSkip{Reason: fmt.Sprintf("and %d more", len(all)-n)})
		}
		if s := headerJSON(report); len(s) <= maxTrailer || n == 0 {
			return s
		}
	}
}
