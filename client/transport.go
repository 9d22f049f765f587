package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"iter"
	"mime"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"syscall"

	"github.com/cloche-dev/cloche/api"
)

// ErrNotRunning is the cause of an error when no daemon is running: the socket is missing, or no
// process listens on it. It is never the cause if a daemon is running and refuses this caller.
var ErrNotRunning = errors.New("no daemon is listening")

// Maximum sizes of answers. The two streams of an exec are the largest part, and JSON can encode
// each of their bytes as several.
const (
	maxAnswer = 512 << 20
	maxLine   = 16 << 20
	maxError  = 1 << 20
)

// call sends in as JSON if it is not nil, and decodes the answer into out if that is not nil.
func (c *Client) call(ctx context.Context, method, path string, q url.Values, in, out any) error {
	resp, err := c.sendJSON(ctx, method, path, q, in, "application/json")
	if err != nil {
		return err
	}
	defer drop(resp.Body)
	if out == nil || resp.StatusCode == http.StatusNoContent {
		return nil
	}
	data, err := readBounded(resp.Body, maxAnswer)
	if err != nil {
		return c.failed(ctx, err)
	}
	return decode(data, out)
}

// callKeyed is call for a request that creates something under an ID that the caller chose, so it
// is safe to repeat. If the connection breaks and the outcome is unknown, the request is sent a
// second time.
func (c *Client) callKeyed(ctx context.Context, id, path string, in, out any) error {
	err := c.call(ctx, http.MethodPost, path, nil, in, out)
	if id != "" && errors.Is(err, errBroken) && !errors.Is(err, errSilent) && ctx.Err() == nil {
		err = c.call(ctx, http.MethodPost, path, nil, in, out)
	}
	return err
}

// lines is call for an answer of JSON lines. It calls fn with each line.
func (c *Client) lines(ctx context.Context, method, path string, q url.Values, in any, fn func([]byte) error) error {
	resp, err := c.sendJSON(ctx, method, path, q, in, "application/x-ndjson")
	if err != nil {
		return err
	}
	defer resp.Body.Close() // the rest of a long answer is not worth reading
	return c.scan(ctx, resp.Body, fn)
}

// scan calls fn with each non-empty line of an answer. A line without a line end was cut off.
func (c *Client) scan(ctx context.Context, body io.Reader, fn func([]byte) error) error {
	return c.scanTo(ctx, body, maxLine, fn)
}

// scanTo is scan with a maximum line length in bytes.
func (c *Client) scanTo(ctx context.Context, body io.Reader, longest int, fn func([]byte) error) error {
	sc := bufio.NewScanner(body)
	sc.Buffer(make([]byte, 0, 64<<10), longest)
	cut := false
	sc.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, '\n'); i >= 0 {
			return i + 1, data[:i], nil
		}
		cut = atEOF && len(data) > 0
		return 0, nil, nil
	})
	for sc.Scan() {
		if len(sc.Bytes()) == 0 {
			continue
		}
		if err := fn(sc.Bytes()); err != nil {
			return err
		}
	}
	err := sc.Err()
	if err == nil && cut {
		err = io.ErrUnexpectedEOF
	}
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		return brokenAnswer("the daemon answered with a line over %d bytes", longest)
	case err != nil:
		return c.failed(ctx, err)
	}
	return nil
}

func (c *Client) sendJSON(ctx context.Context, method, path string, q url.Values, in any, accept string) (*http.Response, error) {
	var body io.Reader
	h := http.Header{"Accept": {accept}}
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, api.Errorf(api.CodeInvalid, "encode request: %w", err)
		}
		body = bytes.NewReader(data)
		h.Set("Content-Type", "application/json")
	}
	return c.send(ctx, method, path, q, body, h)
}

// send sends one request. The response is a success, and the caller closes its body.
func (c *Client) send(ctx context.Context, method, path string, q url.Values, body io.Reader, h http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url(path, q), body)
	if err != nil {
		return nil, api.Errorf(api.CodeInvalid, "make request: %w", err)
	}
	// With GetBody set, the transport could send a request a second time.
	req.GetBody = nil
	req.Header = c.header(h)
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.failed(ctx, err)
	}
	c.reached.Store(true)
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer drop(resp.Body)
	return nil, decodeError(resp)
}

func (c *Client) url(path string, q url.Values) string {
	u := c.base + "/" + api.APIVersion + path
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	return u
}

func (c *Client) header(h http.Header) http.Header {
	if h == nil {
		h = http.Header{}
	}
	h.Set("User-Agent", c.agent)
	if c.token != "" {
		h.Set("Authorization", "Bearer "+c.token)
	}
	return h
}

// decodeLine decodes one line of an answer: a value, or the error that ended the answer.
func decodeLine[T any](line []byte) (v T, err error) {
	if err := decode(line, &v); err != nil || !bytes.Contains(line, []byte(`"error"`)) {
		return v, err
	}
	var failed struct {
		Error *api.Error `json:"error"`
	}
	if err := decode(line, &failed); err != nil || failed.Error == nil {
		return v, err
	}
	return v, failed.Error
}

// plainToTLS is the answer of a Go server to plain HTTP on a TLS port.
const plainToTLS = "Client sent an HTTP request to an HTTPS server"

// decodeError converts an answer that is not a success to the daemon's error.
func decodeError(resp *http.Response) error {
	data, err := readBounded(resp.Body, maxError)
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	var w struct {
		Error *api.Error `json:"error"`
	}
	if err != nil || kind != "application/json" || json.Unmarshal(data, &w) != nil || w.Error == nil || w.Error.Code == "" {
		if bytes.HasPrefix(data, []byte(plainToTLS)) {
			return api.Invalid("host", "the daemon speaks TLS").WithHint("name it as https://host:port")
		}
		code := api.CodeInternal
		if resp.StatusCode == http.StatusBadGateway || resp.StatusCode == http.StatusGatewayTimeout {
			code = api.CodeUnavailable
		}
		return api.Errorf(code, "the answer is HTTP %d and not from a Cloche daemon", resp.StatusCode).
			WithHint("check the host, and any proxy on the way to it")
	}
	if w.Error.RetryAfterMS == 0 {
		if s, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 32); err == nil && s > 0 {
			w.Error.RetryAfterMS = s * 1000
		}
	}
	return w.Error
}

// dialError marks an error of connecting, in contrast to an error of an open connection.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// failed classifies an error of the transport. The message does not contain the text of err, which
// may contain the URL with a path of the caller.
func (c *Client) failed(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	if cerr := ctx.Err(); cerr != nil {
		code := api.CodeCanceled
		if errors.Is(cerr, context.DeadlineExceeded) {
			code = api.CodeTimeout
		}
		return api.Errorf(code, "the call to the daemon ended by its own context: %w", context.Cause(ctx))
	}
	if untrusted, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return api.Errorf(api.CodeUnavailable, "the certificate of the daemon at %s is not trusted: %w", c.host, untrusted.Err).
			WithHint("call it by a name in its certificate; set %s to a file with its authority, where the system does not have that", EnvCAFile)
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return api.Errorf(api.CodeUnavailable, "the daemon at %s does not speak TLS", c.host).WithHint("name it as tcp://host:port").WithCause(err)
	}
	if errors.Is(err, errSilent) {
		return api.Errorf(api.CodeUnavailable, "the daemon at %s has answered nothing for %s", c.host, c.silence).
			WithHint("it may be stopped or overloaded; what was asked may be done yet, so look before you ask again").WithCause(broken{err})
	}
	if _, ok := errors.AsType[*dialError](err); !ok {
		return api.Errorf(api.CodeUnavailable, "the connection to the daemon at %s broke", c.host).
			WithHint("what was asked may have been done; look before you ask again").WithCause(broken{err})
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return api.Errorf(api.CodeUnauthenticated, "the daemon's socket at %s refuses this user", c.host).
			WithHint("be the user that the daemon runs as, or use its TCP address with a token").WithCause(err)
	case errors.Is(err, fs.ErrNotExist), connectionRefused(err):
		e := api.Errorf(api.CodeUnavailable, "no daemon is listening at %s", c.host).
			WithHint("start one with `cloche serve`, or set CLOCHE_HOST to one that runs").
			WithCause(notRunning{err})
		e.Retryable = true
		return e
	}
	e := api.Errorf(api.CodeUnavailable, "cannot connect to the daemon at %s: %w", c.host, rootCause(err))
	e.Retryable = true
	return e
}

// notRunning is a cause that wraps both ErrNotRunning and the system's error.
type notRunning struct{ err error }

func (e notRunning) Error() string   { return e.err.Error() }
func (e notRunning) Unwrap() []error { return []error{ErrNotRunning, e.err} }

// rootCause removes the description of the operation, which repeats the address.
func rootCause(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Err
	}
	return err
}

// wsaConnRefused is the ECONNREFUSED of Windows.
const wsaConnRefused = syscall.Errno(10061)

func connectionRefused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || runtime.GOOS == "windows" && errors.Is(err, wsaConnRefused)
}

// brokenAnswer is the error for an answer that no correct daemon sends.
func brokenAnswer(format string, args ...any) *api.Error {
	return api.Errorf(api.CodeInternal, format, args...).
		WithHint("client and daemon may be of versions that do not fit together")
}

// decode decodes one JSON value from the daemon. It ignores unknown fields, because a newer daemon
// may send more.
func decode(data []byte, out any) error {
	if err := json.Unmarshal(data, out); err != nil {
		return brokenAnswer("the daemon's answer is not understood: %w", err)
	}
	return nil
}

func readBounded(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, brokenAnswer("the daemon's answer is over %d bytes", limit)
	}
	return data, nil
}

// drop reads the rest of a short body, so that the connection can be reused, and closes it.
func drop(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 4<<10)
	body.Close()
}

// pages iterates over a list in pages. ask returns the page at a cursor and the cursor of the next
// page, which is empty after the last. The sequence ends after the first error.
func pages[T any](cursor string, ask func(cursor string) (page []T, next string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		// Each iteration over the sequence begins at the caller's cursor.
		for at := cursor; ; {
			page, next, err := ask(at)
			if err != nil {
				yield(none, err)
				return
			}
			for _, v := range page {
				if !yield(v, nil) {
					return
				}
			}
			if next == "" {
				return
			}
			if next == at {
				yield(none, brokenAnswer("the daemon answered with the cursor that it was asked with"))
				return
			}
			at = next
		}
	}
}
