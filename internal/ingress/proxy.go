package ingress

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/egress/hop"
)

const (
	// idleTime is how long a connection to a port is kept for the next request. It is short because
	// an open connection counts as use of the sandbox.
	idleTime = 5 * time.Second
	// maxIdle and maxIdlePort bound the connections that are kept, of all ports and of one.
	maxIdle, maxIdlePort = 1024, 32
	// maxResponseHeader bounds the header of an answer, in bytes.
	maxResponseHeader = 256 << 10
)

// Target is a port of a sandbox that a request goes to.
type Target struct {
	// Sandbox is its ID, and Port the port inside.
	Sandbox string
	Port    int
	// Origin is the origin of the port for the client, such as "https://8000-ID.example.org". It is
	// in answers that name the program's own address.
	Origin string
	// KeepHost passes the Host and Origin of the request on. Otherwise the program gets
	// localhost:PORT.
	KeepHost bool
	// Dial connects to the port. Its errors are of package api.
	Dial func(ctx context.Context) (net.Conn, error)
}

// Proxy carries requests to ports of sandboxes. It is safe for concurrent use.
type Proxy struct {
	proxy     *httputil.ReverseProxy
	transport *http.Transport
}

// targetKey is the context key of the Target.
type targetKey struct{}

// NewProxy returns a Proxy. The caller closes it.
func NewProxy() *Proxy {
	p := &Proxy{transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			t, ok := ctx.Value(targetKey{}).(Target)
			if !ok {
				return nil, errors.New("a connection without a target")
			}
			return t.Dial(ctx)
		},
		DisableCompression: true, MaxIdleConns: maxIdle, MaxIdleConnsPerHost: maxIdlePort, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxResponseHeader,
	}}
	p.proxy = &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: p.transport, FlushInterval: -1, ModifyResponse: answer,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { failed(w, r, err) },
		ErrorLog:     log.New(io.Discard, "", 0), // what it says is of clients and sandboxes
	}
	return p
}

// Close ends the connections that wait for a request.
func (p *Proxy) Close() { p.transport.CloseIdleConnections() }

// ServePort carries a request to a port, with all that the port answers: streams, large bodies and
// WebSockets. The caller has checked that the client can use the port. The end of the request's
// context ends the exchange.
func (p *Proxy) ServePort(w http.ResponseWriter, r *http.Request, t Target) {
	if !strings.HasPrefix(r.URL.Path, "/") || r.Method == http.MethodConnect {
		badRequest(w, r)
		return
	}
	switch hop.Asked(hop.Head{
		Method: r.Method, HTTP11: r.ProtoMajor == 1 && r.ProtoMinor == 1, Body: r.ContentLength != 0 || len(r.TransferEncoding) > 0,
		Upgrade: r.Header["Upgrade"], Connection: r.Header["Connection"],
	}) {
	case hop.Malformed:
		badRequest(w, r)
		return
	case hop.Ignored:
		// Only WebSockets change the protocol of a connection.
		r.Header.Del("Upgrade")
	}
	p.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, t)))
}

// localHost is the Host of a port for the program itself.
func (t Target) localHost() string { return "localhost:" + strconv.Itoa(t.Port) }

// rewrite makes the request to the port. ReverseProxy has removed the fields that end here.
func rewrite(r *httputil.ProxyRequest) {
	t, _ := r.In.Context().Value(targetKey{}).(Target)
	out := r.Out
	// One pool of connections for each port: names like this are never resolved.
	out.URL.Scheme, out.URL.Host = "http", t.Sandbox+":"+strconv.Itoa(t.Port)
	out.URL.RawQuery = withoutToken(r.In.URL.RawQuery)
	withoutCookie(out.Header)
	out.Header.Del(api.PortTokenHeader)
	r.SetXForwarded()
	if scheme, _, ok := strings.Cut(t.Origin, "://"); ok {
		out.Header.Set("X-Forwarded-Proto", scheme)
	}
	out.Host = r.In.Host
	if !t.KeepHost {
		out.Host = t.localHost()
		if strings.EqualFold(out.Header.Get("Origin"), t.Origin) {
			out.Header.Set("Origin", "http://"+t.localHost())
		}
	}
}

// answer changes what would reach beyond the origin of the port.
func answer(resp *http.Response) error {
	t, _ := resp.Request.Context().Value(targetKey{}).(Target)
	cookiesOfSandbox(resp.Header)
	// They apply to the whole site, or move the origin to another address.
	resp.Header.Del("Clear-Site-Data")
	resp.Header.Del("Alt-Svc")
	if location := resp.Header.Get("Location"); location != "" && !t.KeepHost {
		resp.Header.Set("Location", t.outside(location))
	}
	return nil
}

// outside returns a location with the client's origin in place of the program's own.
func (t Target) outside(location string) string {
	u, err := url.Parse(location)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil {
		return location
	}
	port := strconv.Itoa(t.Port)
	switch u.Host {
	case "localhost:" + port, "127.0.0.1:" + port, "[::1]:" + port:
		_, rest, _ := strings.Cut(location, "://")
		return t.Origin + rest[len(u.Host):]
	}
	return location
}

// failed answers a request that the port did not.
func failed(w http.ResponseWriter, r *http.Request, err error) {
	t, _ := r.Context().Value(targetKey{}).(Target)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has left, or the port was closed
	}
	e, _ := errors.AsType[*api.Error](err)
	switch {
	case e != nil && e.Code == api.CodeState && e.Retryable:
		unavailable(w, r, "The sandbox is paused.", "Resume it, and load this page again.", string(e.Code))
	case e != nil && (e.Code == api.CodeState || e.Code == api.CodeNotFound):
		refused(w, r)
	case e != nil && e.Code == api.CodeUnavailable:
		write(w, r, http.StatusBadGateway, page{
			Title: "No program listens on port " + strconv.Itoa(t.Port), Text: "The port is open, but no program in the sandbox listens on it at 127.0.0.1 or ::1.",
			Advice: "Start the program, and load this page again.", Code: string(e.Code),
		})
	case e != nil && e.Code == api.CodeNoCapacity:
		unavailable(w, r, "The sandbox has too many open connections.", "Try again later.", string(e.Code))
	case e != nil:
		unavailable(w, r, "The sandbox does not answer.", "Try again later.", string(e.Code))
	default:
		write(w, r, http.StatusBadGateway, page{
			Title: "No valid answer from port " + strconv.Itoa(t.Port), Text: "The program in the sandbox closed the connection, or its answer was not HTTP.",
			Advice: "Look at the output of the program.", Code: "bad_gateway",
		})
	}
}
