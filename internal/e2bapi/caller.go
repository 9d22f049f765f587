package e2bapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"os"
	"strings"

	"github.com/cloche-dev/cloche/internal/core"
)

// The values of record.Caller: the daemon's own user on this machine, the holder of the daemon's token, or
// a key by its ID.
const (
	callerUser  = "user"
	callerToken = "token"
	callerKey   = "key:"
)

// keyPrefix begins Cloche's API keys.
const keyPrefix = "clk_"

// caller names the caller of a request of the control plane.
func (s *Server) caller(r *http.Request) (caller core.Caller, id string, err error) {
	key := r.Header.Get("X-API-Key")
	if key == "" {
		key = strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	key = fromE2BForm(key)
	sum := sha256.Sum256([]byte(key))
	switch {
	case key == "":
		return caller, "", fail(http.StatusUnauthorized, "the request has no API key: set E2B_API_KEY to a key of `cloche key create`")
	case s.token != nil && subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1:
		return core.TCPCaller(), callerToken, nil
	case strings.HasPrefix(key, keyPrefix):
		caller, _, err = s.core.Authenticate(key)
		return caller, callerKey + caller.Key, err
	case s.isUser(r):
		return s.user(), callerUser, nil
	}
	return caller, "", fail(http.StatusUnauthorized, "the API key is not valid: set E2B_API_KEY to a key of `cloche key create`")
}

// e2bPrefix begins keys of E2B, which continue in hexadecimal.
const e2bPrefix = "e2b_"

// fromE2BForm returns the key that "cloche e2b env" put into the form of E2B's keys, because some of E2B's
// clients accept no other. Other keys are returned unchanged.
func fromE2BForm(key string) string {
	if digits, ok := strings.CutPrefix(key, e2bPrefix); ok {
		if plain, err := hex.DecodeString(digits); err == nil {
			return string(plain)
		}
	}
	return key
}

// callerOf returns the caller of the data plane of a sandbox. A key that was revoked is an error.
func (s *Server) callerOf(r *record) (core.Caller, error) {
	if id, ok := strings.CutPrefix(r.Caller, callerKey); ok {
		return s.core.CallerOfKey(id)
	}
	switch {
	case r.Caller == callerUser && s.peer != nil:
		return s.user(), nil
	case r.Caller == callerToken && s.token != nil:
		return core.TCPCaller(), nil
	}
	return core.Caller{}, fail(http.StatusUnauthorized, "the caller that created the sandbox is no longer known")
}

// user is the user that the daemon runs as.
func (s *Server) user() core.Caller { return core.UnixCaller(os.Geteuid(), os.Geteuid()) }

// isUser reports whether the other end of a connection belongs to the daemon's own user on this machine.
func (s *Server) isUser(r *http.Request) bool {
	if s.peer == nil || r.Context().Value(sharedKey{}) != nil {
		return false
	}
	local, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string })
	return ok && s.peer(local.String(), r.RemoteAddr) == nil
}

// fromBrowser names the header by which a request is known to come from a web page, or "". No SDK sends
// one of these.
func fromBrowser(r *http.Request) string {
	for _, name := range []string{"Origin", "Sec-Fetch-Site", "Referer", "Cookie"} {
		if r.Header.Get(name) != "" {
			return name
		}
	}
	return ""
}
