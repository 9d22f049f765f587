package langbot

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// The headers of a connection.
const (
	headerToken      = "X-LangBot-Box-Control-Token" //nolint:gosec // the header's name
	headerInstance   = "X-LangBot-Instance-Id"
	headerWorkspace  = "X-LangBot-Workspace-Id"
	headerGeneration = "X-LangBot-Placement-Generation"
)

// pin knows the token and the one instance that is served. It is safe for concurrent
// use.
type pin struct {
	token *[sha256.Size]byte
	mu    sync.Mutex
	// instance is empty until the first connection.
	instance string
}

func newPin(token, instance string) (*pin, error) {
	p := &pin{instance: strings.TrimSpace(instance)}
	if p.instance != "" && !validInstance(p.instance) {
		return nil, api.Invalid("instance", "the trusted instance %s is no id of one", clipped(p.instance)).
			WithHint("letters, digits, and . _ : - after the first, at most 128")
	}
	if token != "" {
		sum := sha256.Sum256([]byte(token))
		p.token = &sum
	}
	return p, nil
}

// validInstance reports whether s can name an instance.
func validInstance(s string) bool {
	if s == "" || len(s) > 128 {
		return false
	}
	for i, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
		case i > 0 && strings.ContainsRune("._:-", r):
		default:
			return false
		}
	}
	return true
}

// identity is who a connection is.
type identity struct {
	instance string
	// plain: the client is older than workspaces (langbot-plugin before 0.5) and names
	// none, so all that it does is for plainPlace.
	plain bool
}

// plainPlace is the one workspace of clients that name none.
func plainPlace() placement {
	return placement{Instance: "default", Workspace: "default", Generation: 1}
}

// enter names who a connection is, or says why it is refused: by its token, or without
// one by who it is. It settles the instance for good where settle
// says that actions come on the connection.
func (s *Server) enter(r *http.Request, settle bool) (identity, error) {
	if s.pin.token == nil { // otherwise admit compares it
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		if s.o.Peer == nil || local == nil {
			return identity{}, errors.New("there is no control token, and this system does not tell which user connects: set LANGBOT_BOX_CONTROL_TOKEN")
		}
		if err := s.o.Peer(local.String(), r.RemoteAddr); err != nil {
			return identity{}, fmt.Errorf("it shows no token, and only the user of the daemon is served without one: %w", err)
		}
		if s.o.Instance == "" && bare(r.Header) {
			return identity{instance: plainPlace().Instance, plain: true}, nil
		}
	}
	instance, err := s.pin.admit(r.Header, settle)
	return identity{instance: instance}, err
}

// bare reports whether a request has no header of LangBot's, and is not a web page's: a
// page cannot set such a header, and nothing else would keep it out.
func bare(h http.Header) bool {
	for _, name := range []string{headerToken, headerInstance, headerWorkspace, headerGeneration, "Origin", "Sec-Fetch-Site"} {
		if len(h.Values(name)) > 0 {
			return false
		}
	}
	return true
}

// admit names the instance of a connection, and settles it for good where it is the
// first one on which actions come.
func (p *pin) admit(h http.Header, settle bool) (instance string, err error) {
	if p.token != nil {
		sum := sha256.Sum256([]byte(h.Get(headerToken)))
		if subtle.ConstantTimeCompare(sum[:], p.token[:]) != 1 {
			return "", errors.New("its control token is missing or another one: LangBot needs the same LANGBOT_BOX_CONTROL_TOKEN (a LangBot with langbot-plugin before 0.5 sends none)")
		}
	}
	instance = strings.TrimSpace(h.Get(headerInstance))
	if !validInstance(instance) {
		return "", errors.New("it names no instance: clients of langbot-plugin before 0.5 are served without a control token and LANGBOT_BOX_TRUSTED_INSTANCE_UUID only")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instance == "" && settle {
		p.instance = instance
	}
	if p.instance != instance {
		return "", errors.New("its instance is not the one that is served: that is LANGBOT_BOX_TRUSTED_INSTANCE_UUID, or the first that connected")
	}
	return instance, nil
}

// trusted is the instance that is served, empty before there is one.
func (p *pin) trusted() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.instance
}

// relayTarget is for whom a relay is, and to which session.
func relayTarget(who identity, r *http.Request) (p placement, logical string, err error) {
	if who.plain {
		return plainPlace(), r.PathValue("session"), nil
	}
	p, ok := relayPlacement(who.instance, r.Header)
	if !ok {
		return p, "", errors.New("its headers name no workspace and generation")
	}
	logical, ok = strings.CutPrefix(r.PathValue("session"), p.runtime()+"-")
	if !ok {
		return p, "", errors.New("the session is of another workspace or generation")
	}
	return p, logical, nil
}

// relayPlacement is for whom a relay is.
func relayPlacement(instance string, h http.Header) (placement, bool) {
	p := placement{Instance: instance, Workspace: strings.TrimSpace(h.Get(headerWorkspace))}
	text := h.Get(headerGeneration)
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 || strconv.FormatInt(n, 10) != text || p.Workspace == "" || len(p.Workspace) > maxWorkspaceID {
		return p, false
	}
	p.Generation = n
	return p, true
}

// refusals tell of refused connections, at most one in refusalEvery, so that a flood of
// them fills no log. It is safe for concurrent use.
type refusals struct {
	mu   sync.Mutex
	last time.Time
	more int64
}

// refusalEvery is the time from one refused connection that is told of to the next.
const refusalEvery = time.Second

// tell reports whether this refusal is told of, and how many before it were not.
func (r *refusals) tell(now time.Time) (more int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() && now.Sub(r.last) < refusalEvery {
		r.more++
		return 0, false
	}
	more, r.last, r.more = r.more, now, 0
	return more, true
}

// turnAway refuses a connection, with a line in the log and one in the audit log.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request, why error) {
	if more, ok := s.refusals.tell(time.Now()); ok {
		s.log.Warn("a connection of LangBot is refused", "remote", r.RemoteAddr, "path", clipped(r.URL.Path), "reason", why, "not_told", more)
		s.core.RefusedConnection(r.RemoteAddr, why.Error(), more)
	}
	unauthorized(w)
}

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte("Unauthorized"))
}
