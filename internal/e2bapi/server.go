package e2bapi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/e2bapi/codeinterpreter"
	"github.com/cloche-dev/cloche/internal/e2bapi/envd"
	"github.com/cloche-dev/cloche/internal/image/build"
)

const (
	// maxBody limits the body of a request of the control plane in bytes.
	maxBody = 1 << 20
	// sweepEvery is how often the sandboxes whose time is over are removed.
	sweepEvery = 5 * time.Second
	// clientID is the part of an ID that E2B's clients require and ignore.
	clientID = "cloche"
)

// DataPlane serves what E2B runs inside each sandbox. *envd.Server is one.
type DataPlane interface {
	ServeSandbox(w http.ResponseWriter, r *http.Request, sb envd.Sandbox)
	// Cut breaks the connections of a sandbox off.
	Cut(ref string)
}

// Options are what a Server works with. Core, DataPlane and Dir are required.
type Options struct {
	Core      Core
	DataPlane DataPlane
	// Dir is the server's own directory. It is created.
	Dir string
	// Profile is the profile of the sandboxes. Empty is the default profile.
	Profile string
	// Allow lists the egress rules of the sandboxes. Nil leaves their network to the profile.
	Allow []string
	// Domain is the domain of the names of ports, with a port if clients need one. Empty means that ports have no names.
	Domain string
	// Token is the daemon's bearer token, which is also accepted as an API key. Empty means no token.
	Token string
	// Peer says why the other end of a TCP connection does not belong to the daemon's own user; nil is
	// that it does. Without Peer every request needs a key.
	Peer func(local, remote string) error
	// Hosts are host names, beside localhost and addresses, by which the server may be called.
	Hosts []string
	// Redact removes the values of secrets from a text. Nil removes nothing.
	Redact func(string) string
	Logger *slog.Logger
}

// Server is the API server. It is safe for concurrent use.
type Server struct {
	core    Core
	data    DataPlane
	code    *codeinterpreter.Server
	records *records
	profile string
	allow   []string
	// domain is the domain as clients are told it, and zone is it without a port.
	domain string
	zone   string
	token  *[sha256.Size]byte
	peer   func(local, remote string) error
	hosts  map[string]bool
	redact func(string) string
	log    *slog.Logger
	mux    *http.ServeMux
	usage  usage
	// resuming are the sandboxes that requests are resuming.
	resuming singleflight.Group
	forward  forwards
	builds   builds

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// New returns a Server. Close ends it; the end of ctx does not.
func New(ctx context.Context, o Options) (*Server, error) {
	if o.Core == nil || o.DataPlane == nil || o.Dir == "" {
		return nil, errors.New("make the E2B server: core, data plane or directory is missing")
	}
	kept, err := openRecords(o.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{
		core: o.Core, data: o.DataPlane, records: kept, profile: o.Profile, allow: o.Allow, domain: strings.ToLower(o.Domain),
		zone: hostName(o.Domain), peer: o.Peer, hosts: map[string]bool{}, redact: o.Redact, log: o.Logger, mux: http.NewServeMux(),
	}
	s.builds = builds{uploads: build.DirCaches{Dir: filepath.Join(o.Dir, "uploads")}, links: map[string]uploadLink{}}
	if o.Token != "" {
		sum := sha256.Sum256([]byte(o.Token))
		s.token = &sum
	}
	for _, name := range o.Hosts {
		s.hosts[strings.ToLower(name)] = true
	}
	if s.redact == nil {
		s.redact = func(text string) string { return text }
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.code = codeinterpreter.New(codeinterpreter.Options{Core: s.core, Decode: decodeUpTo, Log: s.log, Translate: func(err error) (int, string) {
		e := s.toWire(err)
		return e.Code, e.Message
	}})
	s.routes()
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.wg.Go(s.sweep)
	return s, nil
}

// Close ends the work in the background. Requests in progress are the caller's to end.
func (s *Server) Close() error {
	s.cancel()
	s.wg.Wait()
	return s.records.close()
}

// request is one request of the control plane with its caller named.
type request struct {
	*http.Request
	caller core.Caller
	// callerID is what a record keeps of the caller.
	callerID string
}

// sandbox returns the sandbox of the path, with its record. A sandbox of another tenant is not found.
func (s *Server) sandbox(r request) (*record, api.Sandbox, error) {
	id := r.PathValue("id")
	ref, ok := refOf(id)
	kept := s.records.get(ref)
	if !ok || kept == nil {
		return nil, api.Sandbox{}, notFound(id)
	}
	sb, err := s.core.Get(r.Context(), r.caller, ref)
	if api.CodeOf(err) == api.CodeNotFound || err == nil && kept.gone(sb) {
		return nil, api.Sandbox{}, notFound(id)
	}
	return kept, sb, err
}

// gone reports whether the sandbox has ended, for E2B's clients.
func (r *record) gone(sb api.Sandbox) bool {
	return sb.State != api.StateRunning && !r.paused(sb)
}

// paused reports whether the sandbox is paused, for E2B's clients.
func (r *record) paused(sb api.Sandbox) bool {
	return sb.State.Held() || r.Cold && (sb.State == api.StateStopping || sb.State == api.StateStopped)
}

func notFound(id string) error {
	return fail(http.StatusNotFound, "sandbox %q not found", clip(id))
}

// clip limits what an error repeats of a request.
func clip(text string) string { return strings.ToValidUTF8(text[:min(len(text), 100)], "?") }

// handler serves one route of the control plane.
type handler func(w http.ResponseWriter, r request) error

// handle adds a route of the control plane.
func (s *Server) handle(pattern string, verb core.Verb, h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, hr *http.Request) {
		err := func() error {
			caller, id, err := s.caller(hr)
			if err != nil {
				return err
			}
			if err := s.core.Admit(hr.Context(), caller, verb); err != nil {
				return err
			}
			return h(w, request{Request: hr, caller: caller, callerID: id})
		}()
		if err != nil {
			s.log.Debug("a request failed", "route", pattern, "error", err)
			s.writeError(w, err)
		}
	})
}

// ServeHTTP routes a request to the data plane or the control plane.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler { //nolint:errorlint // net/http compares it so
				panic(p)
			}
			s.log.Error("panic in a request", "panic", p, "stack", string(debug.Stack()))
			panic(http.ErrAbortHandler)
		}
	}()
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if s.serveData(w, r) {
		return
	}
	if !s.hostAllowed(r.Host) {
		s.writeError(w, fail(http.StatusMisdirectedRequest, "the host name %q of the request is not known: use the address or localhost", clip(r.Host)))
		return
	}
	if name := fromBrowser(r); name != "" {
		s.writeError(w, fail(http.StatusForbidden, "the request has the header %s, which only a web page sends", name))
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if _, pattern := s.mux.Handler(r); pattern == "" {
		s.writeError(w, fail(http.StatusNotFound, "there is no route %s %s in this server: docs/e2b.md lists the calls that it has", r.Method, clip(r.URL.Path)))
		return
	}
	s.mux.ServeHTTP(w, r)
}

// IdleTimeout is how long a connection of E2B's clients may be idle: they keep connections for longer than
// usual.
const IdleTimeout = 11 * time.Minute

// Shared serves the clients of E2B at a listener of another API, where every request needs a key or the
// daemon's token: a proxy in front of that listener may belong to the daemon's own user.
type Shared struct{ s *Server }

// Shared returns the handler for a listener of another API.
func (s *Server) Shared() Shared { return Shared{s} }

// IdleTimeout is [IdleTimeout].
func (Shared) IdleTimeout() time.Duration { return IdleTimeout }

// Serves reports whether a request is one of E2B's clients: for a port of a sandbox, or for a route of the
// control plane. No such route begins as those of Cloche's own API do.
func (h Shared) Serves(r *http.Request) bool {
	if t, byName, err := h.s.targetOf(r); err != nil || t.id != "" || byName {
		return true
	}
	_, pattern := h.s.mux.Handler(r)
	return pattern != ""
}

// ServeHTTP serves a request until the server is closed.
func (h Shared) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(context.WithValue(r.Context(), sharedKey{}, true))
	defer cancel()
	defer context.AfterFunc(h.s.ctx, cancel)()
	h.s.ServeHTTP(w, r.WithContext(ctx))
}

// sharedKey marks the requests at a listener of another API.
type sharedKey struct{}

// hostAllowed reports whether a Host is an address, localhost or a name of the settings, so that a page
// that has rebound its own name to this machine gets no answer.
func (s *Server) hostAllowed(host string) bool {
	name := hostName(host)
	return name == "localhost" || net.ParseIP(strings.Trim(name, "[]")) != nil || s.hosts[name] || s.zone != "" && (name == s.zone || name == "api."+s.zone || name == "sandbox."+s.zone)
}

// hostName is a Host without its port.
func hostName(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(host, "."))
}

// decode reads a JSON body leniently: E2B's clients send fields that this server does not know. An empty
// body is an empty object.
func decode(r *http.Request, into any) error { return decodeUpTo(r, into, maxBody) }

// decodeUpTo is decode for a body of at most limit bytes.
func decodeUpTo(r *http.Request, into any, limit int64) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	switch {
	case err != nil:
		return fail(http.StatusBadRequest, "the body could not be read")
	case int64(len(data)) > limit:
		return fail(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", limit)
	case len(strings.TrimSpace(string(data))) == 0:
		return nil
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fail(http.StatusBadRequest, "the body is not what this route takes: %s", clip(err.Error()))
	}
	return nil
}

// sweep pauses sandboxes at their end, where they were created so. It removes others whose time is over: core stops them and keeps their records and files, and
// E2B's clients do not see them any more.
func (s *Server) sweep() {
	tick, due := time.NewTicker(sweepEvery), time.NewTicker(pauseEvery)
	defer tick.Stop()
	defer due.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-due.C:
			s.pauseDue()
			continue
		case <-tick.C:
		}
		for _, kept := range s.records.all() {
			if err := s.sweepOne(kept); err != nil && s.ctx.Err() == nil {
				s.log.Warn("remove a sandbox of E2B whose time is over; it is tried again", "sandbox", kept.Sandbox, "error", err)
			}
		}
	}
}

func (s *Server) sweepOne(kept *record) error {
	// The sandbox is removed as the daemon's own user: its key may have been revoked.
	sb, err := s.core.Get(s.ctx, s.user(), kept.Sandbox)
	switch {
	case api.CodeOf(err) == api.CodeNotFound:
	case err != nil:
		return err
	case !sb.State.Over() || kept.paused(sb):
		return nil
	default:
		s.cut(kept.Sandbox)
		if _, err := s.core.Delete(s.ctx, s.user(), kept.Sandbox); err != nil && api.CodeOf(err) != api.CodeNotFound {
			return err
		}
	}
	s.usage.forget(kept.Sandbox)
	return s.records.remove(kept.Sandbox)
}
