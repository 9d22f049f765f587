package api

import "time"

// KeptErrors is how many of the newest errors a daemon keeps for each tenant.
const KeptErrors = 50

// ErrorStage is the stage of a request at which an error happened.
type ErrorStage string

// Stages, in the order in which a request goes through them.
const (
	// StageBuild is the creation of a sandbox from a request, rules and an image.
	StageBuild ErrorStage = "build"
	// StageQuotaBefore means that the workspace exceeded its quota before the exec, and no
	// program was run.
	StageQuotaBefore ErrorStage = "quota_before"
	// StageExecution is the start and run of a program. A program that fails has a result and is
	// not an error.
	StageExecution ErrorStage = "execution"
	// StageQuotaAfter means that the workspace exceeds its quota after the program, and the
	// sandbox is being removed.
	StageQuotaAfter ErrorStage = "quota_after"
)

// ErrorRecord is an error that a caller received for a create, an exec or a process start.
type ErrorRecord struct {
	// Time is in UTC.
	Time    time.Time  `json:"time"`
	Stage   ErrorStage `json:"stage"`
	Code    Code       `json:"code"`
	Message string     `json:"message"`
	// RequestID is the ID of the request in the daemon's log. QueryID is the one in the caller's
	// identity.
	RequestID string `json:"request_id,omitempty"`
	QueryID   string `json:"query_id,omitempty"`
	Tenant    string `json:"tenant"`
	// Sandbox is the ID of the sandbox, if there was one.
	Sandbox string `json:"sandbox,omitempty"`
}

// ErrorList is the answer of GET /v1/errors, newest first.
type ErrorList struct {
	Errors []ErrorRecord `json:"errors"`
}

// ErrorOptions selects errors that the daemon keeps.
type ErrorOptions struct {
	// Tenant is for the operator. Empty selects all that the caller can see.
	Tenant string
	// Limit is the maximum number of errors; 0 is KeptErrors.
	Limit int
}
