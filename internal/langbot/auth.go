package langbot

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/cloche-dev/cloche"
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
		return nil, cloche.Invalid("instance", "the trusted instance %s is no id of one", clipped(p.instance)).
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

// knows says whether a connection may come in: by the token that it shows, or where there
// is none by who it is.
func (s *Server) knows(r *http.Request) bool {
	if s.pin.token != nil {
		return true // which admit compares
	}
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if s.o.Peer == nil || local == nil {
		return false
	}
	if err := s.o.Peer(local.String(), r.RemoteAddr); err != nil {
		s.log.Warn("a connection without a token is refused", "remote", r.RemoteAddr, "reason", err)
		return false
	}
	return true
}

// admit names the instance of a connection, and settles it for good where it is the
// first one on which actions come.
func (p *pin) admit(h http.Header, settle bool) (instance string, ok bool) {
	if p.token != nil {
		sum := sha256.Sum256([]byte(h.Get(headerToken)))
		if subtle.ConstantTimeCompare(sum[:], p.token[:]) != 1 {
			return "", false
		}
	}
	instance = strings.TrimSpace(h.Get(headerInstance))
	if !validInstance(instance) {
		return "", false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.instance == "" && settle {
		p.instance = instance
	}
	return instance, p.instance == instance
}

// trusted is the instance that is served, empty before there is one.
func (p *pin) trusted() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.instance
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

func unauthorized(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(http.StatusUnauthorized)
	_, _ = w.Write([]byte("Unauthorized"))
}
