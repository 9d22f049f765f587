package api

import "time"

// The values of SandboxSpec.Network.
const (
	// NetworkNone is a sandbox with its own loopback and nothing else.
	NetworkNone = "none"
	// NetworkOn is a sandbox with a link, on which all goes by the rules of Egress.
	NetworkOn = "on"
)

// Egress is what may leave a sandbox. The zero value lets nothing out, questions
// for names included.
type Egress struct {
	// Allow are rules, each HOST[:PORT][ at RANGE[,RANGE]] or @NAME for a bundle of
	// them. A host is a name, "*." before one, "*" or an IPv4 address; without port
	// it is 80 and 443, where what is sent must be HTTP or TLS that names the same
	// host, and with one it is any protocol. The ranges are those, not public, in
	// which the host may be. Nil is the profile's list, an empty one lets nothing out.
	Allow []string `json:"allow,omitzero"`
	// Deny are rules without ranges. What one speaks of is held back, whatever Allow
	// says.
	Deny []string `json:"deny,omitempty"`
	// Requests narrow HTTP to hosts that Allow speaks of too. Their TLS is opened.
	Requests []RequestRule `json:"requests,omitempty"`
	// Ask holds connections that no rule covers until approved, instead of refusing
	// them at once.
	Ask    bool         `json:"ask,omitempty"`
	Limits EgressLimits `json:"limits,omitzero"`
}

// RequestRule lets only some requests reach a host. Of several rules for a host one
// must allow the request.
type RequestRule struct {
	// Host is a name, or "*." before one.
	Host string `json:"host"`
	// Methods are names such as "GET"; empty is all.
	Methods []string `json:"methods,omitempty"`
	// Paths begin with "/". One that ends in "/*" is everything below it, every other
	// is that path alone; empty is all.
	Paths []string `json:"paths,omitempty"`
}

// EgressLimits bound what leaves a sandbox in its life. Zero is no bound of the
// caller's own.
type EgressLimits struct {
	Connections int64 `json:"connections,omitempty"`
	// BytesOut and BytesIn count what is inside the connections.
	BytesOut int64 `json:"bytes_out,omitempty"`
	BytesIn  int64 `json:"bytes_in,omitempty"`
}

// EgressRefusal is one thing that was not let out.
type EgressRefusal struct {
	Time time.Time `json:"time"`
	// Name is the host as far as it is known, or the address that was connected to.
	Name string `json:"name"`
	// Port is 0 for a question for a name.
	Port int `json:"port,omitempty"`
	// Rule is the rule that refused.
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
	// Hint is one sentence on how to fix it; empty when there is nothing to say.
	Hint string `json:"hint,omitempty"`
	// Allow is the smallest rule that would let it out; empty where none can.
	Allow string `json:"allow,omitempty"`
	// Method and Path are those of a request; Path is cut.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Suppressed is how many refusals before this one are not told, of a flood.
	Suppressed int64 `json:"suppressed,omitempty"`
}

// EgressRecord is one line of the log of what left a sandbox and what did not.
type EgressRecord struct {
	// Seq counts the records of one sandbox from 1.
	Seq  int64      `json:"seq"`
	Time time.Time  `json:"time"`
	Kind EgressKind `json:"kind"`
	// Flow is the id of the connection; empty where there was none.
	Flow string `json:"flow,omitempty"`
	// Name is the host that was asked for, or the address where none was.
	Name string `json:"name,omitempty"`
	Port int    `json:"port,omitempty"`
	// Addr is the real address; empty where a proxy knows it alone, and for what
	// went nowhere.
	Addr string `json:"addr,omitempty"`
	// ResolvedBy says who found Addr: "cloche", "upstream" or "rule".
	ResolvedBy string `json:"resolved_by,omitempty"`
	// Protocol is "http", "tls" or "tcp".
	Protocol string `json:"protocol,omitempty"`
	// Rule is the one that allowed or refused.
	Rule string `json:"rule,omitempty"`
	// Reason is why it was refused, or why it ended otherwise than by either side.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
	Allow  string `json:"allow,omitempty"`
	// BytesOut and BytesIn are known when it is closed.
	BytesOut int64 `json:"bytes_out,omitempty"`
	BytesIn  int64 `json:"bytes_in,omitempty"`
	// DurationMS is how long it was open.
	DurationMS int64 `json:"duration_ms,omitempty"`
	// Method, Path and Status are those of a request that was seen.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Status int    `json:"status,omitempty"`
	// Secrets are the names of those that were put into it.
	Secrets []string `json:"secrets,omitempty"`
	// Suppressed is how many refusals before this one are not told, of a flood.
	Suppressed int64 `json:"suppressed,omitempty"`
	// Missed is set on the first record of a reader who asked for older ones: so
	// many are not kept any more.
	Missed int64 `json:"missed,omitempty"`
}

// EgressKind is what a record of egress is about.
type EgressKind string

// The kinds.
const (
	// EgressOpened: a connection was let out.
	EgressOpened EgressKind = "opened"
	// EgressClosed: it ended, or could not be made.
	EgressClosed EgressKind = "closed"
	// EgressRefused: something was not let out.
	EgressRefused EgressKind = "refused"
	// EgressRequest: a request inside opened TLS was answered.
	EgressRequest EgressKind = "request"
	// EgressChanged: other rules are in force.
	EgressChanged EgressKind = "changed"
)

// EgressKinds lists every kind, in the order of their declaration.
func EgressKinds() []EgressKind {
	return []EgressKind{EgressOpened, EgressClosed, EgressRefused, EgressRequest, EgressChanged}
}

// EgressLogOptions choose records of egress.
type EgressLogOptions struct {
	// Kinds is any of these; empty is all.
	Kinds []EgressKind
	// After is the number of the last record that the reader has; 0 is all that are
	// kept, negative none of them.
	After int64
	// Tail is only so many of the last that match; 0 is all.
	Tail int
	// Follow goes on with what happens next, until the sandbox ends.
	Follow bool
}

// EgressChange changes the rules of a running sandbox. Connections in progress are
// judged again.
type EgressChange struct {
	// Allow and Deny are added, in the form of Egress.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Remove are rules of either kind that are taken away, as they are in force. A rule
	// that denies is written with "deny " before it.
	Remove []string `json:"remove,omitempty"`
	// ForMS takes what is added away again so much later; 0 is never.
	ForMS int64 `json:"for_ms,omitempty"`
}

// EgressPolicy is the whole of what may leave a sandbox, in the place of whatever could
// before.
type EgressPolicy struct {
	// Network is NetworkNone or NetworkOn; empty is NetworkOn where Egress is given,
	// and the profile's otherwise.
	Network string `json:"network,omitempty"`
	// Egress is what may leave over it; nil is the profile's.
	Egress *Egress `json:"egress,omitempty"`
}

// EgressRules are what is in force in a sandbox.
type EgressRules struct {
	Network string `json:"network"`
	// Generation counts the changes of these rules since the sandbox was made, and
	// Applied is the one that is enforced: where both are the same, no connection that
	// these rules do not allow is left.
	Generation int64 `json:"generation"`
	Applied    int64 `json:"applied"`
	// Egress is all of it together, what ends by itself included.
	Egress Egress `json:"egress"`
	// Temporary are the rules that end by themselves.
	Temporary []TemporaryRule `json:"temporary,omitempty"`
	// Operator are the operator's rules that deny; callers can't remove them.
	Operator []string `json:"operator,omitempty"`
	// Used is what has been used of the limits.
	Used EgressLimits `json:"used,omitzero"`
}

// TemporaryRule is a rule that ends by itself.
type TemporaryRule struct {
	Rule string `json:"rule"`
	// Deny says that it is one that denies.
	Deny      bool      `json:"deny,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Approval is something that a sandbox wants out and that waits for a word.
type Approval struct {
	ID      string `json:"id"`
	Tenant  string `json:"tenant"`
	Sandbox string `json:"sandbox"`
	// SandboxName is the sandbox's name.
	SandboxName string `json:"sandbox_name"`
	// Name and Port are where it wants to go.
	Name string `json:"name"`
	Port int    `json:"port"`
	// Rule is the smallest rule that lets it out.
	Rule    string        `json:"rule"`
	State   ApprovalState `json:"state"`
	AskedAt time.Time     `json:"asked_at"`
	// Asked is how many connections have asked for it.
	Asked int64 `json:"asked"`
	// ExpiresAt is when it ends without a word.
	ExpiresAt time.Time `json:"expires_at"`
	// AnsweredAt and AnsweredBy are set after a decision.
	AnsweredAt *time.Time `json:"answered_at,omitempty"`
	AnsweredBy string     `json:"answered_by,omitempty"`
}

// ApprovalState is what became of an Approval.
type ApprovalState string

// The states.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalRejected ApprovalState = "rejected"
	// ApprovalExpired: no decision in time, or the sandbox ended.
	ApprovalExpired ApprovalState = "expired"
)

// ApprovalList is what waits, and what was answered a short while ago, oldest first.
type ApprovalList struct {
	Approvals []Approval `json:"approvals"`
}

// ApprovalOptions choose approvals.
type ApprovalOptions struct {
	// Sandbox is an id or a name; empty is all that the caller sees.
	Sandbox string
	// All are those that were answered too.
	All bool
}

// ApprovalAnswer is the word that an Approval waits for.
type ApprovalAnswer struct {
	// Approve lets it out, and false does not.
	Approve bool `json:"approve"`
	// ForMS takes the rule that lets it out away again so much later; 0 is never.
	ForMS int64 `json:"for_ms,omitempty"`
}
