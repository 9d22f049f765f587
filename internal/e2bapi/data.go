package e2bapi

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/codeinterpreter"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
)

// The headers that route a request to a port of a sandbox, and the one with the token of its ports.
const (
	headerID      = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// dataFailure is the answer to a request for a sandbox or a port that is not there.
type dataFailure struct {
	SandboxID string `json:"sandboxId"`
	Message   string `json:"message"`
	Port      int    `json:"port,omitempty"`
	Code      int    `json:"code"`
}

// target is what a request of the data plane is for.
type target struct {
	id   string
	port int
}

// serveData serves a request of the data plane, and reports whether it was one.
func (s *Server) serveData(w http.ResponseWriter, r *http.Request) bool {
	t, byName, err := s.targetOf(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return true
	}
	if t.id == "" {
		return false
	}
	if !byName {
		// The name of the host says nothing here, so a page of any site could send the request.
		if name := fromBrowser(r); name != "" || !s.hostAllowed(r.Host) {
			s.writeError(w, fail(http.StatusForbidden, "a web page cannot use the API server"))
			return true
		}
	}
	s.servePort(w, r, t)
	return true
}

// targetOf routes a request: by the name of the host, by its headers, or by the signature of a link to a
// file. An empty ID is a request of the control plane.
func (s *Server) targetOf(r *http.Request) (t target, byName bool, err error) {
	if label, ok := strings.CutSuffix(hostName(r.Host), "."+s.zone); ok && s.zone != "" && label != "api" && label != "sandbox" {
		port, id, _ := strings.Cut(label, "-")
		if t.port, err = strconv.Atoi(port); err != nil || t.port < 1 || t.port > 65535 {
			return t, true, fmt.Errorf("Invalid sandbox port") //nolint:staticcheck // E2B's words
		}
		if _, ok := refOf(id); !ok {
			return t, true, fmt.Errorf("Invalid sandbox ID") //nolint:staticcheck // E2B's words
		}
		t.id = id
		return t, true, nil
	}
	id, port := r.Header.Get(headerID), r.Header.Get(headerPort)
	switch {
	case id == "" && port == "":
		if r.URL.Path == "/files" && r.URL.Query().Has("signature") {
			return target{s.signedBy(r), envdPort}, false, nil
		}
		return t, false, nil
	case id == "" || port == "":
		return t, false, fmt.Errorf("missing header")
	}
	t.id = id
	if t.port, err = strconv.Atoi(port); err != nil || t.port < 1 || t.port > 65535 {
		return t, false, fmt.Errorf("Invalid sandbox port") //nolint:staticcheck // E2B's words
	}
	return t, false, nil
}

// unknownID names no sandbox.
const unknownID = "unknown"

// signedBy returns the ID of the sandbox with whose token a link was signed. It compares with every
// sandbox, so that the time says nothing.
func (s *Server) signedBy(r *http.Request) string {
	found := unknownID
	for _, kept := range s.records.all() {
		if envd.MatchesSignature(r.Method, r.URL.Query(), kept.Token) {
			found = idOf(kept.Sandbox)
		}
	}
	return found
}

// servePort serves a request for a port of a sandbox.
func (s *Server) servePort(w http.ResponseWriter, r *http.Request, t target) {
	kept, sb, caller, err := s.running(r.Context(), t.id)
	inside := envd.Sandbox{Ref: sb.ID, Caller: caller, User: sb.User, Dir: sb.Cwd, Env: sb.Env}
	if kept != nil {
		inside.Token = kept.Token
	}
	switch {
	case t.id == unknownID:
		writeJSON(w, http.StatusUnauthorized, wireError{http.StatusUnauthorized, "invalid signature"})
	case err != nil:
		s.writeError(w, err)
	case kept == nil:
		id, _, _ := strings.Cut(t.id, "-")
		writeJSON(w, http.StatusBadGateway, dataFailure{SandboxID: clip(id), Message: "The sandbox was not found", Code: http.StatusBadGateway})
	case t.port == envdPort:
		s.data.ServeSandbox(w, r, inside)
	default:
		if err := errors.Join(s.checkPublished(r), checkTraffic(kept, r)); err != nil {
			f, _ := errors.AsType[*failure](err) // both make such errors
			writeJSON(w, f.status, dataFailure{SandboxID: idOf(sb.ID), Message: f.message, Port: t.port, Code: f.status})
			return
		}
		ctx, end := s.forward.begin(r.Context(), sb.ID)
		defer end()
		if t.port == codeinterpreter.Port {
			s.code.ServeSandbox(w, r.WithContext(ctx), inside)
			return
		}
		s.proxy(kept, t.port).ServeHTTP(w, r.WithContext(ctx))
	}
}

// running returns a running sandbox and the caller of its data plane. Without such a sandbox the record is nil.
func (s *Server) running(ctx context.Context, id string) (*record, api.Sandbox, core.Caller, error) {
	ref, ok := refOf(id)
	kept := s.records.get(ref)
	if !ok || kept == nil {
		return nil, api.Sandbox{}, core.Caller{}, nil
	}
	caller, err := s.callerOf(kept)
	if err != nil {
		return nil, api.Sandbox{}, caller, err
	}
	sb, err := s.core.Get(ctx, caller, ref)
	if err == nil && kept.paused(sb) && kept.AutoResume {
		if err := s.resumeByTraffic(ctx, caller, kept); err != nil {
			return nil, sb, caller, err
		}
		sb, err = s.core.Get(ctx, caller, ref)
	}
	if api.CodeOf(err) == api.CodeNotFound || err == nil && sb.State != api.StateRunning {
		return nil, sb, caller, nil
	}
	return kept, sb, caller, err
}

// checkPublished refuses ports at an address that other machines reach, unless a rule publishes them.
func (s *Server) checkPublished(r *http.Request) error {
	var at netip.Addr
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		at = local.AddrPort().Addr()
	}
	if err := s.core.AuthorizePublish(at); err != nil {
		return fail(http.StatusForbidden, "%v", err)
	}
	return nil
}

// checkTraffic checks the token of a sandbox whose ports are not public.
func checkTraffic(kept *record, r *http.Request) error {
	got := r.Header.Get(headerTraffic)
	switch {
	case kept.TrafficToken == "" || subtle.ConstantTimeCompare([]byte(got), []byte(kept.TrafficToken)) == 1:
		return nil
	case got == "":
		return fail(http.StatusForbidden, "Sandbox is secured with traffic access token. Token header 'e2b-traffic-access-token' is missing")
	}
	return fail(http.StatusForbidden, "Provided token in header 'e2b-traffic-access-token' is invalid")
}

const (
	// dialTries is how often a port is tried, because a server that was just started may not listen yet.
	dialTries = 5
	dialWait  = 50 * time.Millisecond
)

// proxy forwards requests to a port of a sandbox.
func (s *Server) proxy(kept *record, port int) *httputil.ReverseProxy {
	host := net.JoinHostPort("localhost", strconv.Itoa(port))
	if kept.Network != nil && kept.Network.MaskRequestHost != "" {
		host = strings.ReplaceAll(kept.Network.MaskRequestHost, "${PORT}", strconv.Itoa(port))
	}
	return &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.SetXForwarded()
			pr.Out.URL.Scheme, pr.Out.URL.Host = "http", net.JoinHostPort("localhost", strconv.Itoa(port))
			pr.Out.Host = host
			for _, name := range []string{headerID, headerPort, headerTraffic, "X-Api-Key"} {
				pr.Out.Header.Del(name)
			}
		},
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx, kept, port) },
		},
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			s.log.Debug("forward a request to a port of a sandbox", "sandbox", kept.Sandbox, "port", port, "error", err)
			body := dataFailure{SandboxID: idOf(kept.Sandbox), Message: "The sandbox is running but port is not open", Port: port, Code: http.StatusBadGateway}
			if again, _, _, err := s.running(context.WithoutCancel(r.Context()), idOf(kept.Sandbox)); err != nil || again == nil {
				body.Message, body.Port = "The sandbox was not found", 0
			}
			writeJSON(w, http.StatusBadGateway, body)
		},
	}
}

// dial connects to a port of a sandbox. A port that refuses is tried again for a moment.
func (s *Server) dial(ctx context.Context, kept *record, port int) (net.Conn, error) {
	caller, err := s.callerOf(kept)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		conn, err := s.core.DialPort(ctx, caller, kept.Sandbox, port)
		if err == nil || try == dialTries || api.CodeOf(err) == api.CodeNotFound {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(try) * dialWait):
		}
	}
}
