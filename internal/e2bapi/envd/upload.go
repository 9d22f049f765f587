package envd

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cloche-dev/cloche/api"
)

const (
	// maxUploads bounds the files of one request.
	maxUploads = 1000
	// maxMetaKey and maxMeta bound the metadata of a file in bytes, as Linux does for extended
	// attributes.
	maxMetaKey = 246
	maxMeta    = 4096
	// metaHeader begins the headers that have metadata, and metaPrefix the attributes on disk.
	metaHeader = "X-Metadata-"
	metaPrefix = "user.e2b."
	// maxComposeBody and maxSources bound a request to join files.
	maxComposeBody = 1 << 20
	maxSources     = 1000
)

// written is one file as the answer to an upload has it.
type written struct {
	Path string `json:"path"`
	Name string `json:"name"`
	Type string `json:"type"`
}

// badUpload is an error of a request with its status.
type badUpload struct {
	status int
	text   string
}

func (e *badUpload) Error() string { return e.text }

func badRequest(format string, args ...any) error {
	return &badUpload{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// writeUploadError answers an upload that failed.
func writeUploadError(w http.ResponseWriter, err error) {
	if bad, ok := errors.AsType[*badUpload](err); ok {
		writeFailure(w, bad.status, bad.text)
		return
	}
	writeFailure(w, statusOf(err), textOf(err))
}

// upload writes the files of a request.
func (s *Server) upload(w http.ResponseWriter, r *http.Request, v *view, q url.Values) {
	out, err := v.receive(r, q)
	if err != nil {
		writeUploadError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, out)
}

func (v *view) receive(r *http.Request, q url.Values) ([]written, error) {
	if err := checkMetadata(r.Header); err != nil {
		return nil, err
	}
	body, err := decoded(r)
	if err != nil {
		return nil, err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return nil, badRequest("the Content-Type is not valid")
	}
	switch kind {
	case "application/octet-stream":
		if q.Get("path") == "" {
			return nil, badRequest("the query has no path")
		}
		f, err := v.write(r, q.Get("path"), body)
		return []written{f}, err
	case "multipart/form-data":
		if params["boundary"] == "" {
			return nil, badRequest("the Content-Type has no boundary")
		}
		return v.receiveParts(r, multipart.NewReader(body, params["boundary"]), q)
	}
	return nil, badRequest("Content-Type %.100q is not supported: use multipart/form-data or application/octet-stream", kind)
}

// decoded is the body of a request without its coding.
func decoded(r *http.Request) (io.Reader, error) {
	switch coding := strings.ToLower(r.Header.Get("Content-Encoding")); coding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, badRequest("the body is not gzip")
		}
		return z, nil
	default:
		return nil, badRequest("Content-Encoding %.100q is not supported: use gzip", coding)
	}
}

// receiveParts writes each part that is named file. Its path is the one of the query, or else the
// file name of the part.
func (v *view) receiveParts(r *http.Request, parts *multipart.Reader, q url.Values) ([]written, error) {
	out := []written{}
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, badRequest("the multipart body is not valid")
		}
		if n >= maxUploads {
			return nil, badRequest("the request has more than %d parts", maxUploads)
		}
		field, name := partNames(part.Header)
		if field != "file" {
			continue
		}
		if q.Get("path") != "" {
			name = q.Get("path")
		}
		if name == "" {
			return nil, badRequest("a part has no file name, and the query has no path")
		}
		file, err := v.file(name)
		if err != nil {
			return nil, badRequest("%s", err)
		}
		if slices.ContainsFunc(out, func(w written) bool { return w.Path == file }) {
			return nil, badRequest("path '%s' is in the request twice", file)
		}
		f, err := v.write(r, name, part)
		if err != nil {
			return nil, err
		}
		out = append(out, f)
	}
}

// partNames are the field and the file name of a part. multipart.Part.FileName would drop the
// directories of the name.
func partNames(h textproto.MIMEHeader) (field, file string) {
	_, params, err := mime.ParseMediaType(h.Get("Content-Disposition"))
	if err != nil {
		return "", ""
	}
	return params["name"], params["filename"]
}

// write writes one file.
func (v *view) write(r *http.Request, name string, body io.Reader) (written, error) {
	file, err := v.file(name)
	if err != nil {
		return written{}, badRequest("%s", err)
	}
	b := &bodyReader{r: body}
	sb := v.who.sb
	_, err = v.core.WriteFile(r.Context(), sb.Caller, sb.Ref, v.who.place(file), 0, b)
	switch {
	case err == nil:
	case b.failed != nil:
		return written{}, badRequest("the body is not complete or not valid")
	case errnoOf(err) == "EISDIR":
		return written{}, badRequest("path is a directory: %s", file)
	default:
		return written{}, err
	}
	return written{Path: validText(file), Name: validText(path.Base(file)), Type: "file"}, nil
}

// bodyReader notes that a body failed, which is not a failure of the file.
type bodyReader struct {
	r      io.Reader
	failed error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err != nil && err != io.EOF { //nolint:errorlint // a wrapped one is the end of the connection
		b.failed = err
	}
	return n, err
}

// checkMetadata refuses metadata that is not valid. Valid metadata is not kept: as on a filesystem
// without extended attributes, files have none.
func checkMetadata(h http.Header) error {
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, metaHeader)
		if !ok {
			continue
		}
		value := strings.Join(values, ",")
		switch {
		case key == "" || len(key) > maxMetaKey:
			return badRequest("a key of metadata has 1 to %d bytes", maxMetaKey)
		case strings.ContainsFunc(key+value, func(c rune) bool { return c < 0x20 || c > 0x7e }):
			return badRequest("metadata %.100q has other characters than printable ASCII", key)
		}
		total += len(metaPrefix) + len(key) + len(value)
	}
	if total > maxMeta {
		return badRequest("the metadata has more than %d bytes", maxMeta)
	}
	return nil
}

// composition is a request to join files.
type composition struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	User        string   `json:"username"`
}

// compose joins files to one and removes them.
func (s *Server) compose(w http.ResponseWriter, r *http.Request, sb Sandbox) {
	var c composition
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxComposeBody)).Decode(&c); err != nil {
		writeFailure(w, http.StatusBadRequest, "the body is not valid JSON")
		return
	}
	if len(c.Sources) == 0 || len(c.Sources) > maxSources || c.Destination == "" {
		writeFailure(w, http.StatusBadRequest, fmt.Sprintf("source_paths has 1 to %d paths, and destination is a path", maxSources))
		return
	}
	v, ok := s.viewFor(w, r, sb, c.User)
	if !ok {
		return
	}
	entry, err := v.join(r, c)
	if err != nil {
		writeUploadError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Write(entry)
}

func (v *view) join(r *http.Request, c composition) ([]byte, error) {
	ctx, sb := r.Context(), v.who.sb
	to, err := v.file(c.Destination)
	if err != nil {
		return nil, badRequest("%s", err)
	}
	in := &joined{view: v, r: r}
	defer in.close()
	for _, name := range c.Sources {
		from, err := v.file(name)
		if err != nil {
			return nil, badRequest("%s", err)
		}
		info, err := v.stat(ctx, from, true)
		if errnoOf(err) == "ENOENT" {
			return nil, &badUpload{http.StatusNotFound, fmt.Sprintf("path '%s' does not exist", from)}
		}
		if err != nil {
			return nil, err
		}
		if info.Type != api.TypeFile {
			return nil, badRequest("path '%s' is not a regular file", from)
		}
		in.names = append(in.names, from)
	}
	sources := slices.Clone(in.names)
	if _, err := v.core.WriteFile(ctx, sb.Caller, sb.Ref, v.who.place(to), 0, in); err != nil {
		if errnoOf(err) == "EISDIR" {
			return nil, badRequest("path is a directory: %s", to)
		}
		return nil, err
	}
	for _, from := range sources {
		if from == to {
			continue
		}
		err := v.core.RemoveFile(ctx, sb.Caller, sb.Ref, v.who.place(from), api.RemoveFileOptions{KeepDirs: true})
		if err != nil && errnoOf(err) != "ENOENT" {
			return nil, err
		}
	}
	entry, err := v.entry(ctx, to)
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(entry)
}

// joined reads one file after the other.
type joined struct {
	view  *view
	r     *http.Request
	names []string
	open  io.ReadCloser
}

func (j *joined) Read(p []byte) (int, error) {
	for {
		if j.open == nil {
			if len(j.names) == 0 {
				return 0, io.EOF
			}
			sb := j.view.who.sb
			r, _, err := j.view.core.ReadFile(j.r.Context(), sb.Caller, sb.Ref, j.view.who.place(j.names[0]), 0, -1)
			if err != nil {
				return 0, err
			}
			j.open, j.names = r, j.names[1:]
		}
		n, err := j.open.Read(p)
		if errors.Is(err, io.EOF) {
			j.close()
			err = nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (j *joined) close() {
	if j.open != nil {
		j.open.Close()
		j.open = nil
	}
}
