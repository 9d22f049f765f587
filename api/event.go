package api

import "time"

// Event is one thing that happened, most often to a sandbox. Events are kept for a while
// and counted, so that a reader can leave and come back for those it missed.
type Event struct {
	// Cursor orders events; it grows and is never used twice by one home.
	Cursor  int64     `json:"cursor"`
	Time    time.Time `json:"time"`
	Kind    EventKind `json:"kind"`
	Tenant  string    `json:"tenant"`
	Sandbox string    `json:"sandbox,omitempty"`
	// Name is the sandbox's.
	Name string `json:"name,omitempty"`
	// Process is the record as it was, for events of a process.
	Process *Process `json:"process,omitempty"`
	// Image is the reference of an image, for events of one.
	Image string `json:"image,omitempty"`
	// Pull is how far the pull of it is.
	Pull *PullProgress `json:"pull,omitempty"`
	// Endpoint is the name of the endpoint, for events of one.
	Endpoint string `json:"endpoint,omitempty"`
	// Reason says why, in one sentence.
	Reason string `json:"reason,omitempty"`
	// Caller is the tenant and the origin of the caller, for the end and the removal
	// of a sandbox; empty if no caller requested it.
	Caller string `json:"caller,omitempty"`
	// ExpiresAt is when an expiring sandbox will be ended.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Verb and Rule are what was refused and by which rule.
	Verb string `json:"verb,omitempty"`
	Rule string `json:"rule,omitempty"`
	// Egress is what was not let out, for EventEgressRefused.
	Egress *EgressRefusal `json:"egress,omitempty"`
	// Approval is the one that waits or was answered.
	Approval *Approval `json:"approval,omitempty"`
	// Missed is set on the first event of a reader whose cursor is older than
	// what is kept: so many events are gone.
	Missed int64 `json:"missed,omitempty"`
}

// EventKind is what happened.
type EventKind string

// The kinds.
const (
	EventCreated  EventKind = "sandbox.created"
	EventExpiring EventKind = "sandbox.expiring"
	EventPaused   EventKind = "sandbox.paused"
	EventResumed  EventKind = "sandbox.resumed"
	EventStopping EventKind = "sandbox.stopping"
	EventStopped  EventKind = "sandbox.stopped"
	EventLost     EventKind = "sandbox.lost"
	EventRemoved  EventKind = "sandbox.removed"
	EventOOM      EventKind = "sandbox.oom"
	EventAdopted  EventKind = "sandbox.adopted"
	EventRefused  EventKind = "refused"
	// EventFailed is told once by each daemon of a sandbox whose record it cannot read.
	EventFailed EventKind = "sandbox.failed"
	// EventRecord is told once by each daemon of a record of anything else, such as a
	// workspace, that it cannot read. What the record is about is kept; Reason names the file.
	EventRecord EventKind = "record.unreadable"
	// EventDegraded is told when a sandbox has lost a part of what it was created with.
	EventDegraded EventKind = "sandbox.degraded"

	EventProcessStarted   EventKind = "process.started"
	EventProcessReady     EventKind = "process.ready"
	EventProcessNotReady  EventKind = "process.not_ready"
	EventProcessRestarted EventKind = "process.restarted"
	EventProcessExited    EventKind = "process.exited"
	EventProcessFailed    EventKind = "process.failed"

	// EventEndpointBinding is told when an endpoint is to be put in its place, or again
	// because the sandbox was out of reach; then what was under way has ended.
	EventEndpointBinding  EventKind = "endpoint.binding"
	EventEndpointReady    EventKind = "endpoint.ready"
	EventEndpointDegraded EventKind = "endpoint.degraded"
	EventEndpointDraining EventKind = "endpoint.draining"
	EventEndpointClosed   EventKind = "endpoint.closed"
	EventEndpointFailed   EventKind = "endpoint.failed"

	// EventImagePulling is told when a pull begins, and every few seconds.
	EventImagePulling EventKind = "image.pulling"
	EventImagePulled  EventKind = "image.pulled"
	EventImageFailed  EventKind = "image.failed"
	EventImageRemoved EventKind = "image.removed"

	// EventEgressRefused is told when something was not let out of a sandbox, of a
	// flood only sometimes.
	EventEgressRefused EventKind = "egress.refused"
	// EventEgressChanged is told when other rules are in force in a sandbox.
	EventEgressChanged EventKind = "egress.changed"
	// EventApprovalAsked is told when something begins to wait for a word, and
	// EventApprovalAnswered when it waits no more.
	EventApprovalAsked    EventKind = "approval.asked"
	EventApprovalAnswered EventKind = "approval.answered"

	// EventPolicyReloaded is told when the daemon begins to use other rules,
	// EventPolicyRejected when it found some that are no good and kept the old.
	EventPolicyReloaded EventKind = "policy.reloaded"
	EventPolicyRejected EventKind = "policy.rejected"

	// EventAuditFailing is told when records cannot be written any more,
	// EventAuditRecovered when they can again.
	EventAuditFailing   EventKind = "audit.failing"
	EventAuditRecovered EventKind = "audit.recovered"
)

// EventKinds lists every kind, in the order of their declaration.
func EventKinds() []EventKind {
	return []EventKind{
		EventCreated, EventExpiring, EventPaused, EventResumed, EventStopping, EventStopped, EventLost, EventRemoved, EventOOM,
		EventAdopted, EventFailed, EventRecord, EventDegraded, EventRefused, EventProcessStarted, EventProcessReady, EventProcessNotReady, EventProcessRestarted,
		EventProcessExited, EventProcessFailed, EventEndpointBinding, EventEndpointReady, EventEndpointDegraded,
		EventEndpointDraining, EventEndpointClosed, EventEndpointFailed, EventImagePulling, EventImagePulled, EventImageFailed, EventImageRemoved,
		EventEgressRefused, EventEgressChanged, EventApprovalAsked, EventApprovalAnswered, EventPolicyReloaded, EventPolicyRejected, EventAuditFailing, EventAuditRecovered,
	}
}

// EventOptions choose events.
type EventOptions struct {
	// Sandbox is an id or a name; empty is all that the caller sees.
	Sandbox string
	// Endpoint is the name of one of Sandbox's; empty is all that happened.
	Endpoint string
	// Kinds is any of these; empty is all.
	Kinds []EventKind
	// After is the cursor of the last event that the reader has; 0 is all that
	// are kept, negative none of them.
	After int64
	// Follow goes on with what happens next.
	Follow bool
}
