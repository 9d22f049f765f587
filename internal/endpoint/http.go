package endpoint

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/hop"
	"github.com/cloche-dev/cloche/internal/egress/redact"
)

// exchange is one request on its way.
type exchange struct {
	e    *Endpoint
	up   *upstream
	ctx  context.Context
	stop context.CancelCauseFunc
	// path is what the request asks for, below the target, as sent and decoded.
	raw, decoded string
	// target is the path with the query.
	target string
	// secrets are the values of headers that the host adds, by header.
	secrets map[string]string

	record  api.Exchange
	begun   time.Time
	code    string
	detail  string // of a refusal, for who asked
	in, out atomic.Int64
	// first is when the response began, in nanoseconds after begun.
	first atomic.Int64
	idle  *time.Timer
	// held is how much memory it holds of the share.
	held atomic.Int64
	// recording is what is kept of it; nil is nothing.
	recording *taping
	w         *answering
	// capture is what of it goes on record beside its outline; nil is nothing.
	capture *capturing
	// body is the body of a request that may be repeated, repeated the request that this one
	// repeats; both may be nil.
	body     []byte
	repeated *repeated
	// large says that the body of the response is worth a large buffer.
	large bool
	// websocket says that the connection may become a WebSocket.
	websocket bool
	// trailer is the request's as it goes on; who sends the body fills it at its end.
	trailer http.Header
	// misread says that the body that the sandbox sent is malformed. The error that the
	// transport makes of it does not always say so.
	misread atomic.Bool
}

// exchange begins a record.
func (e *Endpoint) exchange() api.Exchange {
	return api.Exchange{
		ID: api.NewID("ex-"), Tenant: e.o.Tenant, Sandbox: e.o.Sandbox, Endpoint: e.o.Spec.Name, Time: time.Now().UTC(),
	}
}

// serve is what happens to a request.
func (e *Endpoint) serve(w http.ResponseWriter, r *http.Request) {
	e.running.Add(1)
	e.requests.Add(1)
	x := &exchange{e: e, up: e.upstream.Load(), record: e.exchange(), begun: time.Now()}
	if c, ok := r.Context().Value(connKey{}).(*followed); ok {
		c.handled.Store(true)
		x.record.Peer = peerOf(c.Conn)
	}
	x.ctx, x.stop = context.WithCancelCause(r.Context())
	x.target = r.RequestURI
	x.record.Method, x.record.Path = cut(r.Method, 32), cut(pathForRecord(r.RequestURI), 1024)
	x.w = &answering{ResponseWriter: w, x: x}
	defer x.end()
	if code := x.judge(r); code != "" {
		x.refuse(code)
		return
	}
	if wait := e.rates.ask(); wait > 0 {
		retryAfter(w.Header(), wait)
		x.refuse(codeRate)
		return
	}
	if code := e.enter(x.ctx); code != "" {
		x.refuse(code)
		return
	}
	defer func() { <-e.active }()
	if err := x.fetchSecrets(); err != nil {
		e.log.Warn("secret of an endpoint", "sandbox", e.o.Sandbox, "endpoint", e.o.Spec.Name, "error", err)
		x.refuse(codeSecret)
		return
	}
	x.forward(r)
}

// cut shortens s.
func cut(s string, n int) string {
	if len(s) > n {
		s = s[:n]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func pathForRecord(target string) string {
	p, _, _ := strings.Cut(target, "?")
	return p
}

// refuse answers with an error of the endpoint's own. What the client still sends of a
// request that is wrong is not read as another.
func (x *exchange) refuse(code string) {
	x.code = code
	if code == codeMalformed || code == codeBody || code == codeCapability || code == codeUnreadable || code == codeDraining {
		x.w.Header().Set("Connection", "close")
	}
	if code == codeMethod {
		if h := x.up.spec.HTTP; h != nil && len(h.Methods) > 0 {
			x.w.Header().Set("Allow", strings.Join(h.Methods, ", "))
		}
	}
	answer(x.w, code, x.detail, x.record.ID)
}

// enter waits for a slot among the active requests; the code says why it got none.
func (e *Endpoint) enter(ctx context.Context) (code string) {
	if e.draining() {
		return codeDraining
	}
	select {
	case e.active <- struct{}{}:
		return ""
	default:
	}
	select {
	case e.waiting <- struct{}{}:
		defer func() { <-e.waiting }()
	default:
		return codeBusy
	}
	select {
	case e.active <- struct{}{}:
		return ""
	case <-ctx.Done():
		return codeOf(ctx, ctx.Err())
	}
}

// judge says what is wrong with a request; empty is nothing.
func (x *exchange) judge(r *http.Request) (code string) {
	spec := x.up.spec.HTTP
	if spec == nil {
		spec = &api.EndpointHTTP{}
	}
	if c, ok := r.Context().Value(connKey{}).(*followed); ok && c.frame.ambiguous.Load() {
		return codeMalformed
	}
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace || len(spec.Methods) > 0 && !slices.Contains(spec.Methods, r.Method) {
		return codeMethod
	}
	if r.URL.Host != "" || r.URL.User != nil || r.URL.Scheme != "" {
		return codeMalformed // in absolute form
	}
	var err error
	if x.raw, x.decoded, err = pathOf(r.RequestURI, x.up.confined()); err != nil {
		return codeMalformed
	}
	headers := 0
	for _, vs := range r.Header {
		headers += len(vs)
	}
	if headers > maxHeaders {
		return codeHeaders
	}
	// A socket has no name that could be made to mean it, and programs call it as they like.
	if !x.e.socket && !x.e.isOwn(r.Host) {
		return codeMisdirected
	}
	if origins := r.Header["Origin"]; len(origins) > 0 && !spec.AllowOrigin {
		host, ok := strings.CutPrefix(origins[0], "http://")
		if len(origins) > 1 || !ok || !x.e.isOwn(host) {
			return codeOrigin
		}
	}
	if !allowed(spec.Paths, x.decoded) {
		return codePath
	}
	if limit := x.up.spec.Limits.RequestBytes; r.ContentLength > limit {
		return codeBody
	}
	return x.settle(r)
}

// isOwn says whether an authority is the endpoint's.
func (e *Endpoint) isOwn(authority string) bool {
	if e.socket {
		return strings.EqualFold(authority, "localhost")
	}
	port := strconv.Itoa(e.port)
	for _, host := range []string{"127.0.0.1", "localhost", "[::1]"} {
		if strings.EqualFold(authority, host+":"+port) || port == "80" && strings.EqualFold(authority, host) {
			return true
		}
	}
	return false
}

// fetchSecrets finds the values of the headers that the host adds.
func (x *exchange) fetchSecrets() error {
	if x.up.spec.HTTP == nil || len(x.up.spec.HTTP.SecretHeaders) == 0 {
		return nil
	}
	if x.e.o.Secrets == nil {
		return errors.New("there are no secrets here")
	}
	x.secrets = map[string]string{}
	for header, name := range x.up.spec.HTTP.SecretHeaders {
		v, err := x.e.o.Secrets.Value(x.ctx, name, x.up.host)
		if err != nil {
			return err
		}
		if v == "" || strings.ContainsAny(v, "\r\n\x00") {
			return errors.New("the value cannot stand in a header")
		}
		x.secrets[http.CanonicalHeaderKey(header)] = v
	}
	return nil
}

// forward sends the request on, and the response back.
func (x *exchange) forward(r *http.Request) {
	limits := x.up.spec.Limits
	x.idle = time.AfterFunc(ms(limits.IdleMS), func() {
		x.stop(&codedError{codeIdleTime, errIdle})
		// Neither side is waited for.
		c := http.NewResponseController(x.w)
		_ = c.SetWriteDeadline(time.Unix(1, 0))
		_ = c.SetReadDeadline(time.Unix(1, 0))
	})
	r = r.WithContext(x.ctx)
	if r.Body != nil && r.Body != http.NoBody {
		r.Body = &asking{ReadCloser: http.MaxBytesReader(x.w, r.Body, limits.RequestBytes), x: x}
	} else {
		x.idle.Stop()
	}
	if !x.filter(r) {
		return
	}
	if x.up.play != nil {
		x.replay(r)
		return
	}
	var on http.RoundTripper = x.up.transport
	key, again, ok, err := x.repeatOf(r)
	switch {
	case err != nil:
		x.broke(x.w, r, err)
		return
	case ok:
		on = &once{x: x, key: key, again: again, on: on}
	}
	x.startRecording(r)
	x.startCapture(r)
	proxy := &httputil.ReverseProxy{
		Transport: on, FlushInterval: -1, BufferPool: x, ErrorLog: x.e.server.ErrorLog,
		Rewrite: x.rewrite, ModifyResponse: x.responded, ErrorHandler: x.broke,
	}
	defer x.hide(x.w.Header()) // trailers are among them by then
	proxy.ServeHTTP(x.w, r)
}

// hide takes what the host adds to requests out of the fields of an answer.
func (x *exchange) hide(h http.Header) {
	redact.Header(h, slices.Collect(maps.Values(x.secrets)), func(string) string { return "[redacted]" })
}

// broke is what the client gets when the target gives no answer.
func (x *exchange) broke(w http.ResponseWriter, _ *http.Request, err error) {
	code := x.codeOf(err)
	if code == codeClient {
		x.code = code
		panic(http.ErrAbortHandler) // the client has gone
	}
	if code == codeIdleTime {
		// The deadlines that woke everybody are over.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(partingTime))
	}
	x.refuse(code)
}

// end puts the exchange on record.
func (x *exchange) end() {
	if x.idle != nil {
		x.idle.Stop()
	}
	if x.code == "" && !x.w.whole {
		x.code = codeClient // who reads no more
		if x.ctx.Err() != nil {
			x.code = codeOf(x.ctx, x.ctx.Err())
		}
	}
	if x.repeated != nil {
		x.e.repeats.leave(x.repeated, x.code == "")
	}
	x.stop(nil)
	x.w.pulse.end()
	x.keep()
	x.e.o.Share.buffer(-x.held.Load())
	r := &x.record
	r.Status, r.Code = x.w.status, x.code
	r.BytesIn, r.BytesOut = x.in.Load(), x.out.Load()
	r.DurationMS, r.FirstByteMS = time.Since(x.begun).Milliseconds(), time.Duration(x.first.Load()).Milliseconds()
	r.Outcome = outcomeOf(x.code, r.Upstream)
	r.Capture = x.capture.end()
	if x.code != "" && x.code != codeClient {
		x.e.failed(x.code)
	} else if r.Upstream != 0 {
		x.e.worked()
	}
	x.e.o.Observer.Exchanged(*r)
	x.e.end()
}

// outcomeOf sums a record up.
func outcomeOf(code string, upstream int) string {
	switch code {
	case "":
		return "ok"
	case codeClient:
		return "client_cancel"
	case codeMalformed, codeMisdirected, codeOrigin, codeMethod, codePath, codeCapability, codeUnreadable, codeHeaders, codeBody, codeBusy, codeRate:
		return "denied"
	case codeUnreachable, codeTargetDenied, codeReset, codeConnectTime, codeHeaderTime, codeUnattached, codeResponse, codeProtocol:
		return "upstream_error"
	}
	return "bridge_error"
}

// asking is the body of a request.
type asking struct {
	io.ReadCloser
	x *exchange
}

// Read implements io.Reader.
func (a *asking) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(a.x.e.rates.piece(b))
	if errors.Is(err, io.EOF) {
		a.x.settleTrailer()
	} else if err != nil {
		err = a.x.misreads(err)
	}
	a.x.in.Add(int64(n))
	a.x.e.bytesIn.Add(int64(n))
	if n > 0 {
		if perr := a.x.paced(n); perr != nil && err == nil {
			err = perr
		}
	}
	if errors.Is(err, io.EOF) && a.x.first.Load() == 0 {
		a.x.idle.Stop() // what the target may take now is bounded by itself
	}
	return n, err
}

// misreads notes that a body cannot be read for what the sandbox sent. The context has
// ended where it sends no more.
func (x *exchange) misreads(err error) error {
	if _, over := errors.AsType[*http.MaxBytesError](err); over || x.ctx.Err() != nil || errors.Is(err, http.ErrBodyReadAfterClose) {
		return err
	}
	x.misread.Store(true)
	return &codedError{codeMalformed, err}
}

// codeOf says what went wrong with the exchange.
func (x *exchange) codeOf(err error) string {
	code := codeOf(x.ctx, err)
	if code == codeReset && x.misread.Load() {
		return codeMalformed
	}
	return code
}

// telling is the body of a response.
type telling struct {
	io.ReadCloser
	x    *exchange
	left int64 // of what it may hold; negative is no bound
}

// Read implements io.Reader.
func (t *telling) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(t.x.e.rates.piece(b))
	t.x.out.Add(int64(n))
	t.x.e.bytesOut.Add(int64(n))
	t.x.recording.took(b[:n])
	t.x.capture.took(b[:n])
	if n > 0 {
		if perr := t.x.paced(n); perr != nil && err == nil {
			err = perr
		}
	}
	if t.left >= 0 {
		if t.left -= int64(n); t.left < 0 {
			t.x.code = codeResponse
			return 0, &codedError{codeResponse, errors.New("the body is over the limit")}
		}
	}
	if errors.Is(err, io.EOF) {
		t.x.w.whole = true
	} else if err != nil && t.x.code == "" {
		t.x.code = t.x.codeOf(err)
	}
	return n, err
}

// answering is the answer to a request.
type answering struct {
	http.ResponseWriter
	x      *exchange
	status int
	// whole: all of the response has come.
	whole bool
	// pulse keeps a stream of events alive; nil for other responses.
	pulse *pulse
}

// Write implements io.Writer.
func (a *answering) Write(b []byte) (int, error) {
	if a.pulse != nil {
		return a.pulse.write(b)
	}
	return a.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (a *answering) Flush() { _ = a.FlushError() }

// FlushError is Flush with its error.
func (a *answering) FlushError() error {
	if a.pulse != nil {
		a.pulse.mu.Lock()
		defer a.pulse.mu.Unlock()
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// Unwrap is for http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *answering) WriteHeader(status int) {
	a.x.hide(a.Header())
	if status >= 200 {
		a.status = status
		a.x.first.CompareAndSwap(0, int64(time.Since(a.x.begun)))
	}
	a.ResponseWriter.WriteHeader(status)
}

var errProtocol = errors.New("the target changed the protocol")

// responded removes from a response the headers that are not for the sandbox.
func (x *exchange) responded(res *http.Response) error {
	x.record.Upstream = res.StatusCode
	if res.StatusCode == http.StatusSwitchingProtocols && !(x.websocket && hop.Switched(res.Header)) {
		return &codedError{codeProtocol, errProtocol}
	}
	for name := range res.Header {
		if strings.HasPrefix(name, "Access-Control-") && (x.up.spec.HTTP == nil || !x.up.spec.HTTP.AllowOrigin) || strings.HasPrefix(name, "X-Bridge-") {
			delete(res.Header, name)
			continue
		}
	}
	x.hide(res.Header)
	x.hide(res.Trailer) // their names are announced
	if l := res.Header["Location"]; len(l) == 1 {
		l[0] = x.location(l[0])
	}
	x.recording.answered(res)
	x.capture.answered(res)
	if res.StatusCode == http.StatusSwitchingProtocols {
		x.idle.Stop()
		x.w.whole = true
		if both, ok := res.Body.(io.ReadWriteCloser); ok {
			res.Body = &switched{ReadWriteCloser: both, x: x}
		}
		if c, ok := res.Request.Context().Value(connKey{}).(*followed); ok {
			c.opaque()
		}
		return nil
	}
	x.startPulse(res)
	x.large = res.ContentLength > smallBuffer || res.ContentLength < 0 && !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream")
	x.idle.Reset(ms(x.up.spec.Limits.IdleMS))
	left := int64(-1)
	if l := x.up.spec.Limits.ResponseBytes; l > 0 {
		left = l
	}
	if res.Body != http.NoBody {
		res.Body = &telling{ReadCloser: res.Body, x: x, left: left}
	} else {
		x.w.whole = true
	}
	return nil
}

// location is a place below the target as the sandbox knows it. Any other stays,
// and cannot be reached from inside.
func (x *exchange) location(l string) string {
	base := x.up.base
	to, err := url.Parse(l)
	if err != nil || to.Scheme != base.Scheme || !strings.EqualFold(to.Host, base.Host) || to.User != nil {
		return l
	}
	prefix := strings.TrimSuffix(base.EscapedPath(), "/")
	below, ok := strings.CutPrefix(to.EscapedPath(), prefix)
	if !ok || below != "" && !strings.HasPrefix(below, "/") {
		return l
	}
	if below == "" {
		below = "/"
	}
	out := "http://" + authorityOf(x.e.o.Spec) + below
	if to.RawQuery != "" {
		out += "?" + to.RawQuery
	}
	if to.Fragment != "" {
		out += "#" + to.EscapedFragment()
	}
	return out
}
