package api

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies an Error. The list is closed: an API maps each code to
// its own status once, and clients may switch over it exhaustively.
type Code string

// The codes.
const (
	// CodeInvalid: the request itself is wrong; Field names the part.
	CodeInvalid Code = "invalid_argument"
	// CodeUnauthenticated: no caller could be established.
	CodeUnauthenticated Code = "unauthenticated"
	// CodeDenied: policy refused; Rule names the rule.
	CodeDenied Code = "denied"
	// CodeNotFound: the named thing does not exist, or not for this caller.
	CodeNotFound Code = "not_found"
	// CodeExists: a thing of that name exists.
	CodeExists Code = "already_exists"
	// CodeConflict: another caller has what was requested, such as the input of a
	// process.
	CodeConflict Code = "conflict"
	// CodeState: the thing exists but is in a state that does not allow this.
	CodeState Code = "wrong_state"
	// CodeTooLarge: a body, file or field is over a limit of the server.
	CodeTooLarge Code = "too_large"
	// CodeQuota: a workspace holds more than it may; Quota says how much.
	CodeQuota Code = "quota_exceeded"
	// CodeNoCapacity: the server is full; RetryAfter says when to retry.
	CodeNoCapacity Code = "no_capacity"
	// CodeTooMany: the caller's tenant asks too often, or has as many as it may, or as
	// many wait to be made as may wait; Rule names the limit, and RetryAfter says when
	// to retry.
	CodeTooMany Code = "too_many"
	// CodeUnsupported: the engine or this build cannot do what was asked.
	CodeUnsupported Code = "unsupported"
	// CodeCommandNotFound: the program of an exec does not exist inside.
	CodeCommandNotFound Code = "command_not_found"
	// CodeNotExecutable: the program of an exec exists but cannot be executed.
	CodeNotExecutable Code = "not_executable"
	// CodeUnavailable: no runtime is attached or no engine is usable now.
	CodeUnavailable Code = "unavailable"
	// CodeDisabled: the operator switched this off.
	CodeDisabled Code = "disabled"
	// CodeSandboxLost: the sandbox died while it was being used.
	CodeSandboxLost Code = "sandbox_lost"
	// CodeTimeout: the server gave up waiting; nothing is known of the outcome.
	CodeTimeout Code = "deadline_exceeded"
	// CodeCanceled: the caller went away.
	CodeCanceled Code = "canceled"
	// CodeInternal: a defect or a fault of the machine; RequestID finds it in
	// the daemon's log.
	CodeInternal Code = "internal"
)

// Codes lists every code, in the order of their declaration.
func Codes() []Code {
	return []Code{
		CodeInvalid, CodeUnauthenticated, CodeDenied, CodeNotFound, CodeExists, CodeConflict, CodeState,
		CodeTooLarge, CodeQuota, CodeNoCapacity, CodeTooMany, CodeUnsupported, CodeCommandNotFound, CodeNotExecutable,
		CodeUnavailable, CodeDisabled, CodeSandboxLost, CodeTimeout, CodeCanceled, CodeInternal,
	}
}

// Error is the one error type that crosses the API. Message says what was
// asked and what is wrong; Hint says what would be right. Neither ever holds a
// secret or, for a foreign tenant, a path of the host.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint is one sentence on how to fix it; empty when there is nothing to say.
	Hint string `json:"hint,omitempty"`
	// Field is the part of the request that is wrong, as a path: "limits.pids".
	Field string `json:"field,omitempty"`
	// Rule is the policy rule that refused: always with CodeDenied, and with limits
	// that a rule sets.
	Rule string `json:"rule,omitempty"`
	// Errno is the kernel's name of what became of a file in a sandbox, such as EACCES or
	// EISDIR; empty where it was not the kernel that refused.
	Errno string `json:"errno,omitempty"`
	// Quota is what was measured; only with CodeQuota.
	Quota *QuotaExcess `json:"quota,omitempty"`
	// Class says whose matter it is. The server sets it in every answer.
	Class Class `json:"class,omitempty"`
	// TerminalReason is why the sandbox ended that the request was for; empty when it
	// has not, or that is not known.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// Retryable is true when the same request may succeed later unchanged.
	Retryable bool `json:"retryable,omitempty"`
	// RetryAfterMS is how long to wait before that, in milliseconds; 0 is unknown.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	// RequestID is the id under which the daemon logged the request.
	RequestID string `json:"request_id,omitempty"`

	cause error
}

// Errorf makes an Error. A %w in the format becomes the cause, which errors.Is
// and errors.As see on this side of the wire and which is never sent.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Invalid makes a CodeInvalid error for one field of a request.
func Invalid(field, format string, args ...any) *Error {
	e := Errorf(CodeInvalid, format, args...)
	e.Field = field
	return e
}

// Error implements error: the message, then the hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + e.Hint + ")"
}

// Unwrap returns the local cause.
func (e *Error) Unwrap() error { return e.cause }

// Is makes errors.Is(err, ErrUnavailable) and its like compare codes.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Code == e.Code
}

// WithHint sets the hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithCause sets the local cause, which is never sent, and returns e.
func (e *Error) WithCause(err error) *Error {
	e.cause = err
	return e
}

// Judge is the class of e: the class of its TerminalReason, or else of its code.
func (e *Error) Judge() Class {
	if e.TerminalReason != "" {
		return e.TerminalReason.Class()
	}
	return e.Code.Class()
}

// RetryAfter is RetryAfterMS as a duration.
func (e *Error) RetryAfter() time.Duration { return time.Duration(e.RetryAfterMS) * time.Millisecond }

// CodeOf returns the code of err: "" for nil, CodeInternal for an error that
// carries none.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Targets for errors.Is; each matches every Error of its code.
var (
	ErrInvalid         = &Error{Code: CodeInvalid}
	ErrUnauthenticated = &Error{Code: CodeUnauthenticated}
	ErrDenied          = &Error{Code: CodeDenied}
	ErrNotFound        = &Error{Code: CodeNotFound}
	ErrExists          = &Error{Code: CodeExists}
	ErrConflict        = &Error{Code: CodeConflict}
	ErrQuota           = &Error{Code: CodeQuota}
	ErrNoCapacity      = &Error{Code: CodeNoCapacity}
	ErrTooMany         = &Error{Code: CodeTooMany}
	ErrUnsupported     = &Error{Code: CodeUnsupported}
	ErrUnavailable     = &Error{Code: CodeUnavailable}
	ErrDisabled        = &Error{Code: CodeDisabled}
	ErrSandboxLost     = &Error{Code: CodeSandboxLost}
)
