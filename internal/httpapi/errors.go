package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/secret"
)

// statusClientGone is what proxies use for a request whose caller left.
const statusClientGone = 499

// status is the one mapping of codes for this door.
func status(c cloche.Code) int {
	switch c {
	case cloche.CodeInvalid:
		return http.StatusBadRequest
	case cloche.CodeUnauthenticated:
		return http.StatusUnauthorized
	case cloche.CodeDenied, cloche.CodeDisabled:
		return http.StatusForbidden
	case cloche.CodeNotFound:
		return http.StatusNotFound
	case cloche.CodeExists, cloche.CodeConflict, cloche.CodeState:
		return http.StatusConflict
	case cloche.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case cloche.CodeCommandNotFound, cloche.CodeNotExecutable:
		return http.StatusUnprocessableEntity
	case cloche.CodeUnsupported:
		return http.StatusNotImplemented
	case cloche.CodeQuota:
		return http.StatusInsufficientStorage
	case cloche.CodeTooMany:
		return http.StatusTooManyRequests
	case cloche.CodeNoCapacity, cloche.CodeUnavailable:
		return http.StatusServiceUnavailable
	case cloche.CodeSandboxLost:
		return http.StatusGone
	case cloche.CodeTimeout:
		return http.StatusGatewayTimeout
	case cloche.CodeCanceled:
		return statusClientGone
	case cloche.CodeInternal:
	}
	return http.StatusInternalServerError
}

// statusOf is the status of an error. What is not found but is known to have been
// there is gone.
func statusOf(e *cloche.Error) int {
	if e.Code == cloche.CodeNotFound && e.TerminalReason != "" {
		return http.StatusGone
	}
	return status(e.Code)
}

// toWire is err as it answers r: with the request's id, and without what only the log
// may hold and what is secret.
func toWire(err error, r request) *cloche.Error {
	var out cloche.Error
	if e, ok := errors.AsType[*cloche.Error](err); ok {
		out = *e
	} else {
		out = *cloche.Errorf(cloche.CodeInternal, "the daemon met an internal error")
		switch {
		case errors.Is(err, context.Canceled):
			out = *cloche.Errorf(cloche.CodeCanceled, "the caller went away")
		case errors.Is(err, context.DeadlineExceeded):
			out = *cloche.Errorf(cloche.CodeTimeout, "the daemon gave up waiting")
		}
	}
	if out.Code == cloche.CodeInternal {
		// A fault's message may name paths of the host.
		if !r.caller.Operator {
			kept := out
			out = *cloche.Errorf(cloche.CodeInternal, "the daemon met an internal error")
			out.TerminalReason, out.Retryable, out.RetryAfterMS = kept.TerminalReason, kept.Retryable, kept.RetryAfterMS
		}
		switch {
		case r.caller.Via == core.ViaInProcess:
			withoutLog(&out, err)
		case out.Hint == "":
			out.Hint = "the daemon's log has the details under the request id"
		}
	}
	if r.redact != nil {
		out = secret.In(r.redact, out)
	}
	out.RequestID, out.Class = r.id, out.Judge()
	return out.WithCause(nil)
}

// withoutLog is for a core that runs in the process of its caller, where no daemon keeps a
// log: the error itself says what the log would, and its hint does not point to the log.
func withoutLog(out *cloche.Error, err error) {
	const log = "the daemon's log has the details"
	if rest, found := strings.CutPrefix(out.Hint, log); found {
		out.Hint = strings.TrimPrefix(rest, "; ")
	}
	if cause := errors.Unwrap(err); cause != nil && !strings.Contains(out.Message, cause.Error()) {
		out.Message += ": " + cause.Error()
	}
}

// errorBody is the body of every answer that is not a success.
type errorBody struct {
	Error *cloche.Error `json:"error"`
}

func writeError(w http.ResponseWriter, e *cloche.Error, code int) {
	h := w.Header()
	for _, k := range []string{"Content-Length", "Trailer", headerFileInfo} {
		h.Del(k)
	}
	if e.RetryAfterMS > 0 {
		h.Set("Retry-After", strconv.FormatInt((e.RetryAfterMS+999)/1000, 10))
	}
	if code == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="cloche"`)
	}
	writeJSON(w, code, errorBody{e})
}

// writeJSON writes a whole answer. That it cannot be written is the caller's
// loss only, and net/http logs it.
func writeJSON(w http.ResponseWriter, code int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		code, data = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"the answer cannot be encoded"}}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)+1))
	w.WriteHeader(code)
	w.Write(append(data, '\n'))
}
