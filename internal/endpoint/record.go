package endpoint

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/internal/endpoint/recording"
)

// taping is what is kept of one exchange for a recording. A nil one keeps nothing.
type taping struct {
	x *exchange
	n int64

	mu sync.Mutex // the body is read by what sends it on
	// body is the request's as it goes on, whole that it came to its end.
	body  []byte
	whole bool
	// size is how much of the response there is in chunks.
	size    int
	chunks  []recording.Chunk
	res     *http.Response
	header  http.Header
	omitted string
}

// startRecording begins to keep a request that goes on to the target, if it is to be.
func (x *exchange) startRecording(r *http.Request) {
	if x.e.o.Record == nil {
		return
	}
	x.recording = &taping{x: x, n: x.e.o.Record.Begin(), whole: r.Body == nil || r.Body == http.NoBody}
	if !x.recording.whole {
		r.Body = &tapedBody{ReadCloser: r.Body, t: x.recording}
	}
}

// tapedBody is the body of a request on its way.
type tapedBody struct {
	io.ReadCloser
	t *taping
}

// Read implements io.Reader.
func (b *tapedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	if b.t.fits(len(b.t.body), n) {
		b.t.body = append(b.t.body, p[:n]...)
	}
	b.t.whole = b.t.whole || errors.Is(err, io.EOF)
	return n, err
}

// fits reports whether n more bytes are kept. The caller holds mu.
func (t *taping) fits(have, n int) bool {
	if t.omitted != "" || n == 0 {
		return false
	}
	if have+n > recording.MaxBody || !t.x.hold(int64(n)) {
		t.omitted = "it is too large to be kept"
		return false
	}
	return true
}

// answered notes the head of the response, from which what is secret was taken.
func (t *taping) answered(res *http.Response) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.res, t.header = res, recording.Headers(res.Header)
	if res.StatusCode == http.StatusSwitchingProtocols {
		t.omitted = "it became something else than HTTP"
	}
}

// took notes a piece of the response, as it came.
func (t *taping) took(b []byte) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fits(t.size, len(b)) {
		t.size += len(b)
		t.chunks = append(t.chunks, recording.ChunkOf(b, time.Since(t.x.begun).Milliseconds()))
	}
}

// keep puts the exchange into the recording, when it is over. What the endpoint itself
// answered is in none.
func (x *exchange) keep() {
	t := x.recording
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.res == nil {
		return
	}
	_, query, _ := strings.Cut(x.target, "?")
	k := recording.Exchange{
		N: t.n, Time: x.record.Time,
		Request: recording.Request{Method: x.record.Method, Path: x.raw, Query: recording.Query(query), Body: recording.ChunkOf(t.body, 0)},
	}
	if t.omitted == "" && !t.whole {
		t.omitted = "its request was not read to the end"
	}
	if t.omitted == "" && x.tellsSecret(k.Request, t) {
		t.omitted = "it holds the value of a secret"
	}
	if t.omitted != "" {
		k.Request = x.withoutSecrets(k.Request)
	}
	if k.Omitted = t.omitted; k.Omitted == "" {
		k.Response = recording.Response{
			Status: t.res.StatusCode, Header: t.header, Trailer: recording.Headers(t.res.Trailer), Chunks: t.chunks,
			HeadMS: time.Duration(x.first.Load()).Milliseconds(), Cut: x.code != "",
		}
	}
	if !x.e.o.Record.Keep(k) {
		x.e.failed(codeFull)
	}
}

// redact takes the values of secrets out of a text: those that the host added to this
// exchange, and all that are known.
func (x *exchange) redact(s string) string {
	for _, v := range x.secrets {
		s = strings.ReplaceAll(s, v, redacted)
	}
	if x.e.o.Redact != nil {
		s = x.e.o.Redact(s)
	}
	return s
}

// withoutSecrets is what is kept of a request that is not replayed. It can still be
// read as one.
func (x *exchange) withoutSecrets(r recording.Request) recording.Request {
	out := recording.Request{Method: r.Method, Path: x.redact(r.Path), Query: x.redact(r.Query)}
	if x.redact(r.Method) != r.Method {
		out.Method = "REDACTED"
	}
	if !strings.HasPrefix(out.Path, "/") {
		out.Path = "/" + out.Path
	}
	return out
}

// tellsSecret says whether what would be kept holds the value of a secret.
func (x *exchange) tellsSecret(r recording.Request, t *taping) bool {
	if len(x.secrets) == 0 && x.e.o.Redact == nil {
		return false
	}
	holds := func(text string) bool { return x.redact(text) != text }
	whole := make([]byte, 0, t.size)
	for _, c := range t.chunks {
		whole = append(whole, c.Bytes()...)
	}
	if holds(string(whole)) || holds(string(r.Body.Bytes())) || holds(r.Method+" "+r.Path+"?"+r.Query) {
		return true
	}
	for _, h := range []http.Header{t.header, t.res.Trailer} {
		for name, values := range h {
			if holds(name) || holds(strings.Join(values, " ")) {
				return true
			}
		}
	}
	return false
}

// replay answers out of a recording, as it was answered then.
func (x *exchange) replay(r *http.Request) {
	_, query, _ := strings.Cut(x.target, "?")
	asked := recording.Request{Method: r.Method, Path: x.raw, Query: recording.Query(query)}
	if r.Body != nil && r.Body != http.NoBody {
		body, err := x.buffered(r)
		if err != nil {
			x.broke(x.w, r, err)
			return
		}
		asked.Body = recording.ChunkOf(body, 0)
	}
	x.idle.Stop()
	res, err := x.up.play.Next(asked)
	if _, ok := errors.AsType[*recording.Mismatch](err); ok {
		x.detail = err.Error()
		x.refuse(codeReplay)
		return
	}
	if err != nil {
		x.e.log.Warn("replay recording", "sandbox", x.e.o.Sandbox, "endpoint", x.e.o.Spec.Name, "error", err)
		x.refuse(codeUnreachable)
		return
	}
	x.record.Upstream = res.Status
	h := x.w.Header()
	for name, values := range res.Header {
		h[name] = values
	}
	for name := range res.Trailer {
		h.Add("Trailer", name)
	}
	if !x.await(res.HeadMS) {
		return
	}
	x.w.WriteHeader(res.Status)
	out := http.NewResponseController(x.w)
	for _, c := range res.Chunks {
		if !x.await(c.MS) {
			return
		}
		n, err := x.w.Write(c.Bytes())
		x.out.Add(int64(n))
		x.e.bytesOut.Add(int64(n))
		if err == nil {
			err = out.Flush()
		}
		if err == nil {
			err = x.e.rates.pay(x.ctx, n)
		}
		if err != nil {
			x.code = codeOf(x.ctx, err)
			return
		}
	}
	if res.Cut {
		x.code = codeReset
		panic(http.ErrAbortHandler) // as it was
	}
	for name, values := range res.Trailer {
		h[name] = values
	}
	x.w.whole = true
}

// await waits until a part of an answer is due; false means that no client waits for it any
// more.
func (x *exchange) await(ms64 int64) bool {
	how := x.up.spec.Replay
	if how == nil || !how.Pace {
		return true
	}
	t := time.NewTimer(time.Until(x.begun.Add(ms(ms64))))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.ctx.Done():
		x.code = codeOf(x.ctx, x.ctx.Err())
		return false
	}
}

// closeRecordings ends what is recorded and replayed.
func (e *Endpoint) closeRecordings() {
	var errs []error
	if e.o.Record != nil {
		errs = append(errs, e.o.Record.Close())
	}
	if e.o.Play != nil {
		errs = append(errs, e.o.Play.Close())
	}
	if err := errors.Join(errs...); err != nil {
		e.log.Warn("close recording of an endpoint", "sandbox", e.o.Sandbox, "endpoint", e.o.Spec.Name, "error", err)
	}
}
