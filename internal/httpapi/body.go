package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// lingerTimeout is how long what is left of a body is waited for when its answer
// is ready. A caller that sends everything before it reads has that long, and one
// that never ends its body holds the connection no longer.
const lingerTimeout = 2 * time.Second

// tracked is the body of a request. It knows whether all of it was read.
type tracked struct {
	io.ReadCloser
	ended atomic.Bool
}

func (b *tracked) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// track returns the request with a body that is tracked. The server keeps the
// one it made, whose kind it looks at.
func track(r *http.Request) (*http.Request, *tracked) {
	out := r.WithContext(r.Context())
	b := &tracked{ReadCloser: r.Body}
	b.ended.Store(r.Body == nil || r.Body == http.NoBody)
	if !b.ended.Load() {
		out.Body = b
	}
	return out, b
}

// bodyError says in the caller's words why a body did not arrive. What the system
// said is its text only: an end that came too early must not pass for an end.
func bodyError(err error, patience time.Duration) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return api.Errorf(api.CodeTimeout, "nothing more of the request's body came within %v", patience).
			WithHint("send it faster, or in smaller parts").WithCause(errSlow)
	}
	return api.Errorf(api.CodeCanceled, "the body of the request did not arrive whole: %v", err)
}

// errSlow is the cause of an error for a body that took too long.
var errSlow = errors.New("the body came too slowly")

// The headers and trailers of the file calls. Each holds JSON in ASCII.
const (
	headerFileInfo   = "Cloche-File-Info"
	trailerTarReport = "Cloche-Tar-Report"
	trailerError     = "Cloche-Error"
)

// rawWriter is a raw answer that is given up when its reader takes nothing for
// stallTimeout. A reader that is only slow holds up the sender, and is waited for.
type rawWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	begun bool
}

func newRawWriter(w http.ResponseWriter) *rawWriter {
	return &rawWriter{w: w, rc: http.NewResponseController(w)}
}

func (w *rawWriter) Write(p []byte) (int, error) {
	w.begun = true
	if err := w.rc.SetWriteDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}

// close keeps the deadline from the connection's next request.
func (w *rawWriter) close() { _ = w.rc.SetWriteDeadline(time.Time{}) }

// raw answers with what write writes. An error after the first byte is a trailer.
func raw(w http.ResponseWriter, r request, kind string, write func(io.Writer) error) error {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Trailer", trailerError)
	out := newRawWriter(w)
	defer out.close()
	err := write(out)
	if err == nil || !out.begun || r.Context().Err() != nil || !readsTrailers(r) {
		return err
	}
	w.Header().Set(trailerError, headerJSON(toWire(err, r)))
	return nil
}

// rawReader is a raw body that is given up when its sender gives nothing for
// stallTimeout. One that moves may take as long as it likes.
type rawReader struct {
	r     io.Reader
	rc    *http.ResponseController
	ended bool
}

func newRawReader(w http.ResponseWriter, r request) *rawReader {
	return &rawReader{r: r.Body, rc: http.NewResponseController(w)}
}

func (r *rawReader) Read(p []byte) (int, error) {
	if r.ended {
		return 0, io.EOF // the connection's deadline is net/http's again
	}
	if err := r.rc.SetReadDeadline(time.Now().Add(stallTimeout)); err != nil {
		return 0, fmt.Errorf("limit the time for a body: %w", err)
	}
	n, err := r.r.Read(p)
	if errors.Is(err, io.EOF) {
		r.ended = true
	} else if err != nil {
		err = bodyError(err, stallTimeout)
	}
	return n, err
}

func (r *rawReader) close() {
	if !r.ended {
		_ = r.rc.SetReadDeadline(time.Time{})
	}
}

// readsTrailers reports whether the caller of r can be told at the end of an answer that
// it is not whole. One that cannot, and says so by a TE header without them, has its
// connection broken instead: what looks whole to it must be.
func readsTrailers(r request) bool {
	te, said := r.Header["Te"]
	return !said || strings.Contains(strings.ToLower(strings.Join(te, ",")), "trailers")
}

// headerJSON encodes v for a header, where only ASCII is safe.
func headerJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	const hex = "0123456789abcdef"
	unit := func(out []byte, u uint16) []byte {
		return append(out, '\\', 'u', hex[u>>12], hex[u>>8&15], hex[u>>4&15], hex[u&15])
	}
	out := make([]byte, 0, len(data))
	for _, c := range string(data) {
		switch {
		case c < 0x80:
			out = append(out, byte(c))
		case c < 0x10000:
			out = unit(out, uint16(c))
		default: // a surrogate pair
			out = unit(out, uint16(0xd800+(c-0x10000)>>10))
			out = unit(out, uint16(0xdc00+(c-0x10000)&0x3ff))
		}
	}
	return string(out)
}
