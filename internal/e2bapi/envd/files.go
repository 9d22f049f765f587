package envd

import (
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
)

const (
	// sniffed is how much of a file decides its media type, if its name does not.
	sniffed = 512
	// maxPath bounds the path of a file in bytes, as the kernel does.
	maxPath = 4096
)

// serveFiles serves /files: GET reads a file, POST writes files.
func (s *Server) serveFiles(w http.ResponseWriter, r *http.Request, sb Sandbox) {
	if !allow(w, r, http.MethodGet, http.MethodHead, http.MethodPost) {
		return
	}
	q := r.URL.Query()
	if why := refusal(r, q, sb, time.Now()); why != "" {
		writeFailure(w, http.StatusUnauthorized, why)
		return
	}
	v, ok := s.viewFor(w, r, sb, q.Get("username"))
	if !ok {
		return
	}
	if r.Method == http.MethodPost {
		s.upload(w, r, v, q)
	} else {
		s.download(w, r, v, q)
	}
}

// viewFor finds the user of a request outside of Connect, or answers why it cannot.
func (s *Server) viewFor(w http.ResponseWriter, r *http.Request, sb Sandbox, user string) (*view, bool) {
	who, err := s.actorOf(r.Context(), sb, user)
	if unknown, ok := errors.AsType[*unknownUser](err); ok {
		writeFailure(w, http.StatusUnauthorized, fmt.Sprintf("error looking up user '%.256s': unknown user", unknown.name))
		return nil, false
	}
	if err != nil {
		writeFailure(w, statusOf(err), textOf(err))
		return nil, false
	}
	return &view{core: s.core, who: who}, true
}

// file resolves a path of a request outside of Connect.
func (v *view) file(name string) (string, error) {
	file, err := v.who.resolve(name)
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return "", errors.New(ce.Message())
	}
	if len(file) > maxPath {
		return "", errors.New("the path is too long")
	}
	return file, err
}

// download answers with the content of a file.
func (s *Server) download(w http.ResponseWriter, r *http.Request, v *view, q url.Values) {
	file, err := v.file(q.Get("path"))
	if err != nil {
		writeFailure(w, http.StatusBadRequest, err.Error())
		return
	}
	info, err := v.stat(r.Context(), file, true)
	switch {
	case errnoOf(err) == "ENOENT" || errnoOf(err) == "ENOTDIR":
		writeFailure(w, http.StatusNotFound, fmt.Sprintf("path '%s' does not exist", file))
		return
	case err != nil:
		writeFailure(w, statusOf(err), textOf(err))
		return
	case info.Type == api.TypeDir:
		writeFailure(w, http.StatusBadRequest, fmt.Sprintf("path '%s' is a directory", file))
		return
	case info.Type != api.TypeFile:
		writeFailure(w, http.StatusBadRequest, fmt.Sprintf("path '%s' is not a regular file", file))
		return
	}
	coding := codingFor(r.Header)
	if coding == "" {
		writeFailure(w, http.StatusNotAcceptable, "no acceptable coding: identity and gzip are supported")
		return
	}
	c := &content{ctx: r.Context(), view: v, file: file, size: info.Size}
	defer c.close()
	if err := c.open(); err != nil {
		writeFailure(w, statusOf(err), textOf(err))
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept-Encoding")
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(file)}))
	h.Set("Content-Type", c.mediaType())
	h.Set("X-Content-Type-Options", "nosniff")
	switch {
	case coding == "gzip":
		h.Set("Content-Encoding", "gzip")
		c.compressed(w, r)
	case info.Size == 0:
		// Files of /proc have content and no size.
		w.WriteHeader(http.StatusOK)
		if r.Method != http.MethodHead {
			s.finished(r, copyAll(w, c.r))
		}
	default:
		http.ServeContent(w, r, "", info.ModTime, c)
	}
	s.finished(r, c.err)
}

// finished cuts a download that failed, so that a client does not take a part for the whole.
func (s *Server) finished(r *http.Request, err error) {
	if err != nil {
		requestOf(r.Context()).cancel(errCut)
	}
}

func copyAll(w io.Writer, r io.Reader) error {
	_, err := io.Copy(w, r)
	return err
}

// codingFor chooses the coding of an answer; "" if no coding is acceptable. gzip is used if it is
// the only coding that a client names: over a local connection, compression costs more than it
// saves, and most clients name gzip with others in every request.
func codingFor(h http.Header) string {
	var named []string
	refused := map[string]bool{}
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, params, _ := strings.Cut(strings.TrimSpace(part), ";")
		coding = strings.ToLower(strings.TrimSpace(coding))
		if coding == "" {
			continue
		}
		if weight, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			if q, err := strconv.ParseFloat(weight, 64); err == nil && q == 0 {
				refused[coding] = true
				continue
			}
		}
		named = append(named, coding)
	}
	only := len(named) == 1 && named[0] == "gzip"
	identity := !refused["identity"] && (!refused["*"] || contains(named, "identity"))
	zip := !refused["gzip"] && (contains(named, "gzip") || contains(named, "*"))
	switch {
	case only && h.Get("Range") == "":
		return "gzip"
	case identity:
		return "identity"
	case zip:
		return "gzip"
	}
	return ""
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// content is the content of a file for http.ServeContent. It reads from core as far as it is read.
type content struct {
	ctx  context.Context
	view *view
	file string
	size int64
	pos  int64 // of the next read
	at   int64 // where r is
	r    *bufio.Reader
	raw  io.Closer
	err  error // of the first read that failed
}

// open begins to read at pos.
func (c *content) open() error {
	c.close()
	sb := c.view.who.sb
	r, _, err := c.view.core.ReadFile(c.ctx, sb.Caller, sb.Ref, c.view.who.place(c.file), c.pos, -1)
	if err != nil {
		return err
	}
	c.r, c.raw, c.at = bufio.NewReaderSize(r, 64<<10), r, c.pos
	return nil
}

func (c *content) close() {
	if c.raw != nil {
		c.raw.Close()
		c.raw, c.r = nil, nil
	}
}

// mediaType is the media type by the name of the file, or by its first bytes.
func (c *content) mediaType() string {
	if t := mime.TypeByExtension(path.Ext(c.file)); t != "" {
		return t
	}
	head, _ := c.r.Peek(sniffed)
	return http.DetectContentType(head)
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	if c.r == nil || c.at != c.pos {
		if err := c.open(); err != nil {
			c.err = err
			return 0, err
		}
	}
	n, err := c.r.Read(p)
	c.pos += int64(n)
	c.at = c.pos
	if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, io.EOF) && c.pos < c.size {
		c.err = err
	}
	return n, err
}

// Seek implements io.Seeker.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += c.pos
	case io.SeekEnd:
		offset += c.size
	}
	if offset < 0 {
		return 0, errors.New("seek before the start")
	}
	c.pos = offset
	return offset, nil
}

// compressed answers with the content as gzip.
func (c *content) compressed(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	if r.Method == http.MethodHead {
		return
	}
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		if err = copyAll(z, c.r); err == nil {
			err = z.Close()
		}
	}
	c.err = err
}
