package api

import "time"

// Event is one event, most often of a sandbox. The daemon keeps events for a while and numbers
// them, so a reader can disconnect and later read the events it missed.
type Event struct {
	// Cursor orders events. It increases, and a home directory never uses a cursor twice.
	Cursor  int64     `json:"cursor"`
	Time    time.Time `json:"time"`
	Kind    EventKind `json:"kind"`
	Tenant  string    `json:"tenant"`
	Sandbox string    `json:"sandbox,omitempty"`
	// Name is the name of the sandbox.
	Name string `json:"name,omitempty"`
	// Process is the process's record at that time, for process events.
	Process *Process `json:"process,omitempty"`
	// Image is the image reference, for image events.
	Image string `json:"image,omitempty"`
	// Pull is the progress of the image's pull.
	Pull *PullProgress `json:"pull,omitempty"`
	// Endpoint is the name of the endpoint, for endpoint events.
	Endpoint string `json:"endpoint,omitempty"`
	// Reason explains the event in one sentence.
	Reason string `json:"reason,omitempty"`
	// Caller is the tenant and the origin of the caller that ended or removed the sandbox. It is
	// empty if no caller did.
	Caller string `json:"caller,omitempty"`
	// ExpiresAt is when an expiring sandbox will be ended.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// Verb and Rule are the refused operation and the rule that refused it.
	Verb string `json:"verb,omitempty"`
	Rule string `json:"rule,omitempty"`
	// Egress is the refusal, for EventEgressRefused.
	Egress *EgressRefusal `json:"egress,omitempty"`
	// Approval is the approval that is pending or was answered.
	Approval *Approval `json:"approval,omitempty"`
	// Missed is set on the first event for a reader whose cursor is older than the oldest event.
	// It counts the events that are no longer kept.
	Missed int64 `json:"missed,omitempty"`
}

// EventKind is the kind of an event.
type EventKind string

// Kinds of events.
const (
	EventCreated  EventKind = "sandbox.created"
	EventExpiring EventKind = "sandbox.expiring"
	// EventStarted reports that a sandbox that had ended runs again.
	EventStarted EventKind = "sandbox.started"
	EventPaused  EventKind = "sandbox.paused"
	// EventSuspended reports that the memory of a sandbox was saved and freed.
	EventSuspended EventKind = "sandbox.suspended"
	// EventResumed reports that a paused or suspended sandbox runs again.
	EventResumed  EventKind = "sandbox.resumed"
	EventStopping EventKind = "sandbox.stopping"
	EventStopped  EventKind = "sandbox.stopped"
	EventLost     EventKind = "sandbox.lost"
	EventRemoved  EventKind = "sandbox.removed"
	EventOOM      EventKind = "sandbox.oom"
	EventAdopted  EventKind = "sandbox.adopted"
	EventRefused  EventKind = "refused"
	// EventFailed reports a sandbox whose record the daemon cannot read. Each daemon reports it
	// once.
	EventFailed EventKind = "sandbox.failed"
	// EventRecord reports any other record, such as a workspace's, that the daemon cannot read.
	// Each daemon reports it once. The daemon keeps the object that the record describes. Reason
	// names the file.
	EventRecord EventKind = "record.unreadable"
	// EventDegraded reports that a sandbox has lost something that it was created with.
	EventDegraded EventKind = "sandbox.degraded"

	EventProcessStarted   EventKind = "process.started"
	EventProcessReady     EventKind = "process.ready"
	EventProcessNotReady  EventKind = "process.not_ready"
	EventProcessRestarted EventKind = "process.restarted"
	EventProcessExited    EventKind = "process.exited"
	EventProcessFailed    EventKind = "process.failed"

	// EventEndpointBinding reports that the daemon is about to create the endpoint's listener, or
	// to create it again because the sandbox was unreachable. In the second case the exchanges in
	// progress have ended.
	EventEndpointBinding  EventKind = "endpoint.binding"
	EventEndpointReady    EventKind = "endpoint.ready"
	EventEndpointDegraded EventKind = "endpoint.degraded"
	EventEndpointDraining EventKind = "endpoint.draining"
	EventEndpointClosed   EventKind = "endpoint.closed"
	EventEndpointFailed   EventKind = "endpoint.failed"

	// EventImagePulling is sent when a pull begins, and then every few seconds.
	EventImagePulling EventKind = "image.pulling"
	EventImagePulled  EventKind = "image.pulled"
	EventImageFailed  EventKind = "image.failed"
	EventImageRemoved EventKind = "image.removed"

	// EventEgressRefused reports refused egress. If there are too many refusals, only some are
	// reported.
	EventEgressRefused EventKind = "egress.refused"
	// EventEgressChanged reports that the egress rules of a sandbox changed.
	EventEgressChanged EventKind = "egress.changed"
	// EventApprovalAsked reports a new pending approval. EventApprovalAnswered reports that it is
	// no longer pending.
	EventApprovalAsked    EventKind = "approval.asked"
	EventApprovalAnswered EventKind = "approval.answered"

	// EventPolicyReloaded reports that the daemon uses new rules. EventPolicyRejected reports
	// that new rules are invalid and the daemon keeps the old ones.
	EventPolicyReloaded EventKind = "policy.reloaded"
	EventPolicyRejected EventKind = "policy.rejected"

	// EventAuditFailing reports that audit records cannot be written. EventAuditRecovered reports
	// that they can be written again.
	EventAuditFailing   EventKind = "audit.failing"
	EventAuditRecovered EventKind = "audit.recovered"
)

// EventKinds returns every kind, in the order of declaration.
func EventKinds() []EventKind {
	return []EventKind{
		EventCreated, EventExpiring, EventStarted, EventPaused, EventSuspended, EventResumed, EventStopping, EventStopped, EventLost, EventRemoved, EventOOM,
		EventAdopted, EventFailed, EventRecord, EventDegraded, EventRefused, EventProcessStarted, EventProcessReady, EventProcessNotReady, EventProcessRestarted,
		EventProcessExited, EventProcessFailed, EventEndpointBinding, EventEndpointReady, EventEndpointDegraded,
		EventEndpointDraining, EventEndpointClosed, EventEndpointFailed, EventImagePulling, EventImagePulled, EventImageFailed, EventImageRemoved,
		EventEgressRefused, EventEgressChanged, EventApprovalAsked, EventApprovalAnswered, EventPolicyReloaded, EventPolicyRejected, EventAuditFailing, EventAuditRecovered,
	}
}

// EventOptions selects events.
type EventOptions struct {
	// Sandbox is an ID or a name. Empty selects all that the caller can see.
	Sandbox string
	// Endpoint is the name of an endpoint of Sandbox. Empty selects all events.
	Endpoint string
	// Kinds selects events of any of these kinds. Empty selects all.
	Kinds []EventKind
	// After is the cursor of the last event that the reader has. 0 selects all events that are
	// kept, and a negative value selects none of them.
	After int64
	// Follow continues with new events as they happen.
	Follow bool
}
