package policy

import (
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// LocalTenant is the tenant of the operator.
const LocalTenant = "local"

// The listeners through which a caller comes.
const (
	ViaUnix      = "unix"
	ViaTCP       = "tcp"
	ViaInProcess = "inprocess"
)

// Caller is who asks. The zero value is nobody in particular: it is no operator
// and gets only what the rules list for everyone.
type Caller struct {
	// Tenant owns what the caller makes, and sees only that.
	Tenant string
	// Operator may name host directories that it owns, and see every tenant.
	Operator bool
	// UID is the uid of the peer process, -1 when it is not known.
	UID int
	// Via is ViaUnix, ViaTCP or ViaInProcess.
	Via string
	// Key is the id of the API key that the caller showed; empty is none.
	Key string
	// Scope narrows what the caller may do; nil is no narrowing. Nobody changes it.
	Scope *Scope
}

// UnixCaller is the peer of a unix socket, in the daemon's own namespaces: the operator when its uid is the
// daemon's own, else a tenant named after its uid. A negative uid is unknown
// and never the operator.
func UnixCaller(peerUID, daemonUID int) Caller {
	if peerUID >= 0 && peerUID == daemonUID {
		return Caller{Tenant: LocalTenant, Operator: true, UID: peerUID, Via: ViaUnix}
	}
	if peerUID < 0 {
		return Caller{Tenant: "unknown", UID: -1, Via: ViaUnix}
	}
	return Caller{Tenant: "uid-" + strconv.Itoa(peerUID), UID: peerUID, Via: ViaUnix}
}

// OwnerCaller is the peer of a unix socket that nobody but the daemon's own user gets to,
// on a system where users have no numbers.
func OwnerCaller() Caller {
	return Caller{Tenant: LocalTenant, Operator: true, UID: -1, Via: ViaUnix}
}

// TCPCaller is whoever showed the daemon's bearer token over TCP. It is never
// the operator: a token says nothing of who holds it.
func TCPCaller() Caller { return Caller{Tenant: "tcp", UID: -1, Via: ViaTCP} }

// KeyCaller is whoever showed an API key. It is never the operator.
func KeyCaller(k api.Key) Caller {
	return Caller{Tenant: k.Tenant, UID: -1, Via: ViaTCP, Key: k.ID, Scope: ScopeOf(k)}
}

// Origin says how the caller came, as records name it: "unix uid 1000".
func (c Caller) Origin() string {
	origin := c.Via
	if c.UID >= 0 {
		origin += " uid " + strconv.Itoa(c.UID)
	}
	if c.Key != "" {
		origin += " " + c.Key
	}
	return origin
}

// InProcessCaller is the user whose own process runs the core; it is the
// operator.
func InProcessCaller(uid int) Caller {
	return Caller{Tenant: LocalTenant, Operator: true, UID: uid, Via: ViaInProcess}
}
