package api

import "time"

// Values of SandboxSpec.Network.
const (
	// NetworkNone gives the sandbox only its own loopback interface.
	NetworkNone = "none"
	// NetworkOn gives the sandbox a network link. The rules of Egress apply to all its traffic.
	NetworkOn = "on"
)

// Egress says which connections can leave a sandbox. The zero value allows none, DNS queries
// included.
type Egress struct {
	// Allow lists rules of the form HOST[:PORT][ at RANGE[,RANGE]], or @NAME for a bundle of
	// rules. HOST is a name, "*." followed by a name, "*" or an IPv4 address. Without a port the
	// rule covers ports 80 and 443, and the traffic must be HTTP or TLS that names the same host.
	// With a port it covers any protocol. RANGE is a non-public address range that the host may
	// resolve to. Nil means the profile's list; an empty list allows nothing.
	Allow []string `json:"allow,omitzero"`
	// Deny lists rules without ranges. A connection that a deny rule matches is refused, even
	// when Allow matches it too.
	Deny []string `json:"deny,omitempty"`
	// Requests limit which HTTP requests can reach hosts that Allow also covers. The TLS
	// connections of these hosts are intercepted.
	Requests []RequestRule `json:"requests,omitempty"`
	// Ask holds a connection that no rule covers until it is approved, instead of refusing it at
	// once.
	Ask    bool         `json:"ask,omitempty"`
	Limits EgressLimits `json:"limits,omitzero"`
}

// RequestRule allows only some requests to a host. When a host has several rules, one of them must
// allow the request.
type RequestRule struct {
	// Host is a name, or "*." followed by a name.
	Host string `json:"host"`
	// Methods are HTTP methods such as "GET". Empty allows all.
	Methods []string `json:"methods,omitempty"`
	// Paths begin with "/". A path that ends in "/*" covers everything below it. Any other path
	// covers only itself. Empty allows all.
	Paths []string `json:"paths,omitempty"`
}

// EgressLimits limits what leaves a sandbox over its whole lifetime. Zero means that the caller
// sets no limit.
type EgressLimits struct {
	Connections int64 `json:"connections,omitempty"`
	// BytesOut and BytesIn count the payload of connections.
	BytesOut int64 `json:"bytes_out,omitempty"`
	BytesIn  int64 `json:"bytes_in,omitempty"`
}

// EgressRefusal is one connection, query or request that was refused.
type EgressRefusal struct {
	Time time.Time `json:"time"`
	// Name is the host name if it is known, or the address that was connected to.
	Name string `json:"name"`
	// Port is 0 for a DNS query.
	Port int `json:"port,omitempty"`
	// Rule is the rule that refused it.
	Rule   string `json:"rule"`
	Reason string `json:"reason"`
	// Hint says how to fix it, in one sentence. It can be empty.
	Hint string `json:"hint,omitempty"`
	// Allow is the smallest rule that would allow it. It is empty if no rule can.
	Allow string `json:"allow,omitempty"`
	// Method and Path are those of an HTTP request. Path may be truncated.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	// Suppressed counts the refusals just before this one that were not reported because there
	// were too many.
	Suppressed int64 `json:"suppressed,omitempty"`
}

// EgressRecord is one line of the log of allowed and refused egress.
type EgressRecord struct {
	// Seq counts the records of one sandbox from 1.
	Seq  int64      `json:"seq"`
	Time time.Time  `json:"time"`
	Kind EgressKind `json:"kind"`
	// Flow is the ID of the connection. It is empty if there was no connection.
	Flow string `json:"flow,omitempty"`
	// Name is the requested host, or the address if no host was named.
	Name string `json:"name,omitempty"`
	Port int    `json:"port,omitempty"`
	// Addr is the actual address. It is empty if only a proxy knows it, or if no connection was
	// made.
	Addr string `json:"addr,omitempty"`
	// ResolvedBy says what resolved Addr: "cloche", "upstream" or "rule".
	ResolvedBy string `json:"resolved_by,omitempty"`
	// Protocol is "http", "tls" or "tcp".
	Protocol string `json:"protocol,omitempty"`
	// Rule is the rule that allowed or refused it.
	Rule string `json:"rule,omitempty"`
	// Reason says why it was refused, or why the connection was ended by neither of its two
	// sides.
	Reason string `json:"reason,omitempty"`
	Hint   string `json:"hint,omitempty"`
	Allow  string `json:"allow,omitempty"`
	// BytesOut and BytesIn are set when the connection is closed.
	BytesOut int64 `json:"bytes_out,omitempty"`
	BytesIn  int64 `json:"bytes_in,omitempty"`
	// DurationMS is how long the connection was open.
	DurationMS int64 `json:"duration_ms,omitempty"`
	// Method, Path and Status are those of a request that was intercepted.
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Status int    `json:"status,omitempty"`
	// Secrets are the names of the secrets that were inserted into the request.
	Secrets []string `json:"secrets,omitempty"`
	// Suppressed counts the refusals just before this one that were not recorded because there
	// were too many.
	Suppressed int64 `json:"suppressed,omitempty"`
	// Missed is set on the first record for a reader that asked for older ones. It counts the
	// records that are no longer kept.
	Missed int64 `json:"missed,omitempty"`
}

// EgressKind is the kind of an egress record.
type EgressKind string

// Kinds of egress records.
const (
	// EgressOpened records that a connection was allowed.
	EgressOpened EgressKind = "opened"
	// EgressClosed records that a connection ended or could not be made.
	EgressClosed EgressKind = "closed"
	// EgressRefused records a refusal.
	EgressRefused EgressKind = "refused"
	// EgressRequest records an answered request inside intercepted TLS.
	EgressRequest EgressKind = "request"
	// EgressChanged records that the rules changed.
	EgressChanged EgressKind = "changed"
)

// EgressKinds returns every kind, in the order of declaration.
func EgressKinds() []EgressKind {
	return []EgressKind{EgressOpened, EgressClosed, EgressRefused, EgressRequest, EgressChanged}
}

// EgressLogOptions selects egress records.
type EgressLogOptions struct {
	// Kinds selects records of any of these kinds. Empty selects all.
	Kinds []EgressKind
	// After is the sequence number of the last record that the reader has. 0 selects all records
	// that are kept, and a negative value selects none of them.
	After int64
	// Tail selects only the last Tail matching records; 0 selects all.
	Tail int
	// Follow continues with new records until the sandbox ends.
	Follow bool
}

// EgressChange changes the rules of a running sandbox. The new rules also apply to open
// connections.
type EgressChange struct {
	// Allow and Deny are rules to add, in the same form as in Egress.
	Allow []string `json:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty"`
	// Remove lists allow or deny rules to remove, written as they are in force. Write "deny "
	// before a deny rule.
	Remove []string `json:"remove,omitempty"`
	// ForMS removes the added rules again after this time; 0 means never.
	ForMS int64 `json:"for_ms,omitempty"`
}

// EgressPolicy replaces all egress rules of a sandbox.
type EgressPolicy struct {
	// Network is NetworkNone or NetworkOn. Empty means NetworkOn if Egress is set, and the
	// profile's value otherwise.
	Network string `json:"network,omitempty"`
	// Egress is the new rules; nil means the profile's.
	Egress *Egress `json:"egress,omitempty"`
}

// EgressRules are the rules in force in a sandbox.
type EgressRules struct {
	Network string `json:"network"`
	// Generation counts the rule changes since the sandbox was created. Applied is the generation
	// that is enforced. When the two are equal, no connection that these rules forbid is still
	// open.
	Generation int64 `json:"generation"`
	Applied    int64 `json:"applied"`
	// Egress is all rules in force, including temporary ones.
	Egress Egress `json:"egress"`
	// Temporary lists the rules that expire.
	Temporary []TemporaryRule `json:"temporary,omitempty"`
	// Operator lists the operator's deny rules, which callers cannot remove.
	Operator []string `json:"operator,omitempty"`
	// Used is how much of the limits has been used.
	Used EgressLimits `json:"used,omitzero"`
}

// TemporaryRule is a rule that expires.
type TemporaryRule struct {
	Rule string `json:"rule"`
	// Deny is set for a deny rule.
	Deny      bool      `json:"deny,omitempty"`
	ExpiresAt time.Time `json:"expires_at"`
}

// Approval is a held connection of a sandbox, which waits for approval.
type Approval struct {
	ID      string `json:"id"`
	Tenant  string `json:"tenant"`
	Sandbox string `json:"sandbox"`
	// SandboxName is the sandbox's name.
	SandboxName string `json:"sandbox_name"`
	// Name and Port are the destination.
	Name string `json:"name"`
	Port int    `json:"port"`
	// Rule is the smallest rule that allows it.
	Rule    string        `json:"rule"`
	State   ApprovalState `json:"state"`
	AskedAt time.Time     `json:"asked_at"`
	// Asked counts the connections that asked for this destination.
	Asked int64 `json:"asked"`
	// ExpiresAt is when it expires if it is not answered.
	ExpiresAt time.Time `json:"expires_at"`
	// AnsweredAt and AnsweredBy are set once it is answered.
	AnsweredAt *time.Time `json:"answered_at,omitempty"`
	AnsweredBy string     `json:"answered_by,omitempty"`
}

// ApprovalState is the state of an Approval.
type ApprovalState string

// States of an approval.
const (
	ApprovalPending  ApprovalState = "pending"
	ApprovalApproved ApprovalState = "approved"
	ApprovalRejected ApprovalState = "rejected"
	// ApprovalExpired means that it was not answered in time, or that the sandbox ended.
	ApprovalExpired ApprovalState = "expired"
)

// ApprovalList lists pending and recently answered approvals, oldest first.
type ApprovalList struct {
	Approvals []Approval `json:"approvals"`
}

// ApprovalOptions selects approvals.
type ApprovalOptions struct {
	// Sandbox is an ID or a name. Empty selects all that the caller can see.
	Sandbox string
	// All includes answered approvals.
	All bool
}

// ApprovalAnswer answers an Approval.
type ApprovalAnswer struct {
	// Approve allows the connection. False refuses it.
	Approve bool `json:"approve"`
	// ForMS removes the allow rule again after this time; 0 means never.
	ForMS int64 `json:"for_ms,omitempty"`
}

// Refusal returns what a record of a refusal says to the caller.
func (r EgressRecord) Refusal() *EgressRefusal {
	return &EgressRefusal{
		Time: r.Time, Name: r.Name, Port: r.Port, Rule: r.Rule, Reason: r.Reason, Hint: r.Hint, Allow: r.Allow,
		Method: r.Method, Path: r.Path, Suppressed: r.Suppressed,
	}
}
