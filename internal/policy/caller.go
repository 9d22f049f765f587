package policy

import (
	"strconv"

	"github.com/cloche-dev/cloche/api"
)

// LocalTenant is the tenant of the operator.
const LocalTenant = "local"

// Listeners through which a caller connects.
const (
	ViaUnix      = "unix"
	ViaTCP       = "tcp"
	ViaInProcess = "inprocess"
	// ViaUse is Cloche itself, which resumes a sandbox for a use, with the rights of the sandbox's creator.
	ViaUse = "auto_resume"
)

// Caller is the caller of an operation. The zero value is an unknown caller: it is not the operator
// and gets only what the rules allow for everyone.
type Caller struct {
	// Tenant owns what the caller creates. The caller sees only this tenant.
	Tenant string
	// Operator means that the caller can name host directories that it owns, and can see every
	// tenant.
	Operator bool
	// UID is the uid of the peer process, or -1 if it is not known.
	UID int
	// Via is ViaUnix, ViaTCP, ViaInProcess or ViaUse.
	Via string
	// Key is the ID of the API key that the caller presented, or empty.
	Key string
	// Scope limits what the caller can do. Nil is no limit. It is never changed.
	Scope *Scope
}

// UnixCaller returns the peer of a unix socket in the daemon's own namespaces: the operator if its
// uid is the daemon's own, and otherwise a tenant named after its uid. A negative uid is unknown
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

// OwnerCaller returns the peer of a unix socket that only the daemon's own user can access, on a
// system where users have no numbers.
func OwnerCaller() Caller {
	return Caller{Tenant: LocalTenant, Operator: true, UID: -1, Via: ViaUnix}
}

// TCPCaller returns the caller that presented the daemon's bearer token over TCP. It is never the
// operator, because a token does not identify its holder.
func TCPCaller() Caller { return Caller{Tenant: "tcp", UID: -1, Via: ViaTCP} }

// KeyCaller returns the caller that presented an API key. It is never the operator.
func KeyCaller(k api.Key) Caller {
	return Caller{Tenant: k.Tenant, UID: -1, Via: ViaTCP, Key: k.ID, Scope: ScopeOf(k)}
}

// Origin returns how the caller connected, as records show it: "unix uid 1000".
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

// InProcessCaller returns the user whose own process runs the core. It is the operator.
func InProcessCaller(uid int) Caller {
	return Caller{Tenant: LocalTenant, Operator: true, UID: uid, Via: ViaInProcess}
}
