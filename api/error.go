package api

import (
	"errors"
	"fmt"
	"time"
)

// Code classifies an Error. The list is closed: an API server maps each code to one HTTP status,
// and clients can switch over it exhaustively.
type Code string

// Error codes.
const (
	// CodeInvalid means that the request is invalid. Field names the part that is wrong.
	CodeInvalid Code = "invalid_argument"
	// CodeUnauthenticated means that the caller could not be authenticated.
	CodeUnauthenticated Code = "unauthenticated"
	// CodeDenied means that policy refused the request. Rule names the rule.
	CodeDenied Code = "denied"
	// CodeNotFound means that the named object does not exist, or not for this caller.
	CodeNotFound Code = "not_found"
	// CodeExists means that an object of that name already exists.
	CodeExists Code = "already_exists"
	// CodeConflict means that another caller holds what was requested, such as the input of a
	// process.
	CodeConflict Code = "conflict"
	// CodeState means that the object exists but its state does not allow this operation.
	CodeState Code = "wrong_state"
	// CodeTooLarge means that a body, file or field exceeds a limit of the server.
	CodeTooLarge Code = "too_large"
	// CodeQuota means that a workspace exceeds its quota. Quota says by how much.
	CodeQuota Code = "quota_exceeded"
	// CodeNoCapacity means that the server is full. RetryAfter says when to retry.
	CodeNoCapacity Code = "no_capacity"
	// CodeTooMany means that the caller's tenant reached a limit: requests per second, sandboxes,
	// or creations that wait. Rule names the limit, and RetryAfter says when to retry.
	CodeTooMany Code = "too_many"
	// CodeUnsupported means that the engine or this build does not support the request.
	CodeUnsupported Code = "unsupported"
	// CodeCommandNotFound means that the program of an exec does not exist in the sandbox.
	CodeCommandNotFound Code = "command_not_found"
	// CodeNotExecutable means that the program of an exec exists but cannot be executed.
	CodeNotExecutable Code = "not_executable"
	// CodeUnavailable means that no runtime is attached or no engine can be used now.
	CodeUnavailable Code = "unavailable"
	// CodeDisabled means that the operator disabled this.
	CodeDisabled Code = "disabled"
	// CodeSandboxLost means that the sandbox died while it was in use.
	CodeSandboxLost Code = "sandbox_lost"
	// CodeTimeout means that the server stopped waiting. The outcome is unknown.
	CodeTimeout Code = "deadline_exceeded"
	// CodeCanceled means that the caller canceled the request or disconnected.
	CodeCanceled Code = "canceled"
	// CodeInternal means a defect or a fault of the machine. Search the daemon's log for
	// RequestID.
	CodeInternal Code = "internal"
)

// Codes returns every code, in the order of declaration.
func Codes() []Code {
	return []Code{
		CodeInvalid, CodeUnauthenticated, CodeDenied, CodeNotFound, CodeExists, CodeConflict, CodeState,
		CodeTooLarge, CodeQuota, CodeNoCapacity, CodeTooMany, CodeUnsupported, CodeCommandNotFound, CodeNotExecutable,
		CodeUnavailable, CodeDisabled, CodeSandboxLost, CodeTimeout, CodeCanceled, CodeInternal,
	}
}

// Error is the error type of the API. Message says what was requested and what is wrong. Hint says
// what to do. Neither contains secrets or, for other tenants, paths of the host.
type Error struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	// Hint says how to fix the error, in one sentence. It can be empty.
	Hint string `json:"hint,omitempty"`
	// Field is the path of the part of the request that is wrong, such as "limits.pids".
	Field string `json:"field,omitempty"`
	// Rule is the policy rule that refused the request. It is always set with CodeDenied and for
	// limits that a rule sets.
	Rule string `json:"rule,omitempty"`
	// Errno is the kernel's error name for a file operation in a sandbox, such as EACCES or
	// EISDIR. It is empty if the error did not come from the kernel.
	Errno string `json:"errno,omitempty"`
	// Quota is the measured excess. It is only set with CodeQuota.
	Quota *QuotaExcess `json:"quota,omitempty"`
	// Class says who is responsible. The server sets it in every answer.
	Class Class `json:"class,omitempty"`
	// TerminalReason says why the sandbox of the request ended. It is empty if the sandbox has
	// not ended or the reason is unknown.
	TerminalReason TerminalReason `json:"terminal_reason,omitempty"`
	// Retryable is true when the same request may succeed later.
	Retryable bool `json:"retryable,omitempty"`
	// RetryAfterMS is how long to wait before a retry, in milliseconds; 0 is unknown.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	// RequestID is the ID of the request in the daemon's log.
	RequestID string `json:"request_id,omitempty"`

	cause error
}

// Errorf returns an Error. The operand of %w becomes the cause, which errors.Is and errors.As can
// find locally. The cause is never sent over the API.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), cause: errors.Unwrap(err)}
}

// Invalid returns a CodeInvalid error for one field of a request.
func Invalid(field, format string, args ...any) *Error {
	e := Errorf(CodeInvalid, format, args...)
	e.Field = field
	return e
}

// Error implements error. It returns the message, then the hint.
func (e *Error) Error() string {
	if e.Hint == "" {
		return e.Message
	}
	return e.Message + " (" + e.Hint + ")"
}

// Unwrap returns the local cause.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an Error with the same code, as in errors.Is(err, ErrUnavailable).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Message == "" && t.Code == e.Code
}

// WithHint sets the hint and returns e.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithCause sets the local cause, which is never sent over the API, and returns e.
func (e *Error) WithCause(err error) *Error {
	e.cause = err
	return e
}

// Judge returns the class of e: the class of the sandbox's terminal reason if it is set, and
// otherwise the class of the code.
func (e *Error) Judge() Class {
	if e.TerminalReason != "" {
		return e.TerminalReason.Class()
	}
	return e.Code.Class()
}

// RetryAfter returns RetryAfterMS as a duration.
func (e *Error) RetryAfter() time.Duration { return time.Duration(e.RetryAfterMS) * time.Millisecond }

// CodeOf returns the code of err: "" for nil, and CodeInternal for an error without a code.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return CodeInternal
}

// Targets for errors.Is. Each matches every Error with its code.
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
