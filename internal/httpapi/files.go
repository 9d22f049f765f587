package httpapi

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// copyBuffer is how much of a file is in hand at once.
const copyBuffer = 128 << 10

func (s *Server) readFile(w http.ResponseWriter, r request) error {
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

func (s *Server) writeFile(w http.ResponseWriter, r request) error {
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

func (s *Server) removeFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	at, o := q.place(), api.RemoveFileOptions{Recursive: q.boolean("recursive"), KeepDirs: q.boolean("keep_dirs")}
	return done(w, q.end(), func() error {
		return s.core.RemoveFile(r.Context(), r.caller, r.ref(), at, o)
	})
}

func (s *Server) statFile(w http.ResponseWriter, r request) error {
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

func (s *Server) listFiles(w http.ResponseWriter, r request) error {
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

func (s *Server) moveFile(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	from, to := q.place(), q.path("to")
	return done(w, q.end(), func() error { return s.core.MoveFile(r.Context(), r.caller, r.ref(), from, to) })
}

func (s *Server) makeDir(w http.ResponseWriter, r request) error {
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
