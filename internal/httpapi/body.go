package httpapi

import (
	"errors"
	"io"
	"net/http"
	"os"
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
