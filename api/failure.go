package api

import "time"

// KeptErrors is how many errors a daemon remembers of each tenant, the newest.
const KeptErrors = 50

// ErrorStage is what was to be done when an error came of it.
type ErrorStage string

// The stages, in the order in which a request goes through them.
const (
	// StageBuild: the sandbox was to be made, of a request, rules and an image.
	StageBuild ErrorStage = "build"
	// StageQuotaBefore: the workspace held too much, and nothing was run.
	StageQuotaBefore ErrorStage = "quota_before"
	// StageExecution: a program was to be run. Its own failure is a result, not an
	// error.
	StageExecution ErrorStage = "execution"
	// StageQuotaAfter: the workspace holds too much after the program, and the sandbox
	// is being removed.
	StageQuotaAfter ErrorStage = "quota_after"
)

// ErrorRecord is one error that a caller got of a create, an exec or a process start.
type ErrorRecord struct {
	// Time is in UTC.
	Time    time.Time  `json:"time"`
	Stage   ErrorStage `json:"stage"`
	Code    Code       `json:"code"`
	Message string     `json:"message"`
	// RequestID finds the request in the daemon's log. QueryID is the query id of the
	// caller's identity.
	RequestID string `json:"request_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	Tenant    string `json:"tenant"`
	// Sandbox is its id, where there was one.
	Sandbox string `json:"sandbox,omitempty"`
}

// ErrorList is the answer of GET /v1/errors, the newest first.
type ErrorList struct {
	Errors []ErrorRecord `json:"errors"`
}

// ErrorOptions choose from the errors that a daemon remembers.
type ErrorOptions struct {
	// Tenant is for the operator; empty is all that the caller sees.
	Tenant string
	// Limit is how many; 0 is KeptErrors.
	Limit int
}
