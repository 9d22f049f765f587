package httpapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// maxStdin is the most input that one request carries. More is sent in several,
// each with its offset.
const maxStdin = 1 << 30

func (s *Server) writeStdin(w http.ResponseWriter, r request) error {
	q := queryOf(r)
	offset, end := q.number("offset"), q.boolean("end")
	if err := q.end(); err != nil {
		return err
	}
	if err := contentType(r, "application/octet-stream"); err != nil {
		return err
	}
	tooLarge := api.Errorf(api.CodeTooLarge, "the body of the request is over %d bytes", maxStdin).
		WithHint("send the rest in a request of its own, with its offset")
	if r.ContentLength > maxStdin {
		return tooLarge
	}
	ctx, cancel := s.lasting(r)
	defer cancel()
	raw := newRawReader(w, r)
	defer raw.close()
	// While the process takes nothing, nothing is read of the connection either, so
	// that a caller that died would not be noticed.
	ctx, stalled := context.WithCancelCause(ctx)
	defer stalled(nil)
	in := &taken{r: http.MaxBytesReader(w, io.NopCloser(raw), maxStdin), t: time.AfterFunc(stallTimeout, func() {
		stalled(api.Errorf(api.CodeTimeout, "the process took no input for %v", stallTimeout).
			WithHint("the process's record says how much it has taken"))
	})}
	defer in.t.Stop()
	ack, err := s.core.WriteStdin(ctx, r.caller, r.ref(), r.process(), offset, in, end)
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return tooLarge
	}
	if err != nil {
		return cut(ctx, err)
	}
	writeJSON(w, http.StatusOK, ack)
	return nil
}

// taken runs its timer while nothing is taken of it. How long its own source may
// take is not its affair.
type taken struct {
	r io.Reader
	t *time.Timer
}

func (k *taken) Read(p []byte) (int, error) {
	k.t.Stop()
	defer k.t.Reset(stallTimeout)
	return k.r.Read(p)
}
