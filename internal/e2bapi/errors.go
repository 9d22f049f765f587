package e2bapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cloche-dev/cloche/api"
)

// failure is an answer that is not a success, in E2B's words.
type failure struct {
	status  int
	message string
	// cause is for the log.
	cause error
}

func (f *failure) Error() string { return f.message }
func (f *failure) Unwrap() error { return f.cause }

func fail(status int, format string, args ...any) error {
	return &failure{status: status, message: fmt.Sprintf(format, args...)}
}

// unsupported refuses what E2B has and this server does not.
func unsupported(format string, args ...any) error {
	return fail(http.StatusNotImplemented, format, args...)
}

// statusOf returns the status of an error of core. E2B's clients read it again from the body.
func statusOf(code api.Code) int {
	switch code {
	case api.CodeInvalid, api.CodeCommandNotFound, api.CodeNotExecutable:
		return http.StatusBadRequest
	case api.CodeUnauthenticated:
		return http.StatusUnauthorized
	case api.CodeDenied, api.CodeDisabled:
		return http.StatusForbidden
	case api.CodeNotFound, api.CodeSandboxLost:
		return http.StatusNotFound
	case api.CodeExists, api.CodeConflict, api.CodeState:
		return http.StatusConflict
	case api.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case api.CodeUnsupported:
		return http.StatusNotImplemented
	case api.CodeQuota:
		return http.StatusInsufficientStorage
	case api.CodeTooMany:
		return http.StatusTooManyRequests
	case api.CodeNoCapacity, api.CodeUnavailable:
		return http.StatusServiceUnavailable
	case api.CodeTimeout:
		return http.StatusGatewayTimeout
	case api.CodeCanceled, api.CodeInternal:
	}
	return http.StatusInternalServerError
}

// wireError is the body of an error.
type wireError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// toWire translates an error. The message has core's hint, because E2B's clients show nothing else.
func (s *Server) toWire(err error) wireError {
	if f, ok := errors.AsType[*failure](err); ok {
		return wireError{f.status, f.message}
	}
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		return wireError{http.StatusInternalServerError, "the daemon met an internal error"}
	}
	text := e.Message
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return wireError{statusOf(e.Code), s.redact(text)}
}

func (s *Server) writeError(w http.ResponseWriter, err error) {
	body := s.toWire(err)
	if e, ok := errors.AsType[*api.Error](err); ok && e.RetryAfterMS > 0 {
		w.Header().Set("Retry-After", fmt.Sprint((e.RetryAfterMS+999)/1000))
	}
	writeJSON(w, body.Code, body)
}

// writeJSON answers with a body. An error of the connection has no one to be told to.
func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}
