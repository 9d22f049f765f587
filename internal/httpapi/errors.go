package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/core"
	"github.com/cloche-dev/cloche/internal/secret"
)

// statusClientGone is what proxies use for a request whose caller left.
const statusClientGone = 499

// status is the one mapping of codes for this API server.
func status(c api.Code) int {
	switch c {
	case api.CodeInvalid:
		return http.StatusBadRequest
	case api.CodeUnauthenticated:
		return http.StatusUnauthorized
	case api.CodeDenied, api.CodeDisabled:
		return http.StatusForbidden
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeExists, api.CodeConflict, api.CodeState:
		return http.StatusConflict
	case api.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case api.CodeCommandNotFound, api.CodeNotExecutable:
		return http.StatusUnprocessableEntity
	case api.CodeUnsupported:
		return http.StatusNotImplemented
	case api.CodeQuota:
		return http.StatusInsufficientStorage
	case api.CodeTooMany:
		return http.StatusTooManyRequests
	case api.CodeNoCapacity, api.CodeUnavailable:
		return http.StatusServiceUnavailable
	case api.CodeSandboxLost:
		return http.StatusGone
	case api.CodeTimeout:
		return http.StatusGatewayTimeout
	case api.CodeCanceled:
		return statusClientGone
	case api.CodeInternal:
	}
	return http.StatusInternalServerError
}

// statusOf is the status of an error. A thing that is not found but is known to have
// existed is gone.
func statusOf(e *api.Error) int {
	if e.Code == api.CodeNotFound && e.TerminalReason != "" {
		return http.StatusGone
	}
	return status(e.Code)
}

// toWire is err as it answers r: with the request's id, and without what only the log
// may hold and what is secret.
func toWire(err error, r request) *api.Error {
	var out api.Error
	if e, ok := errors.AsType[*api.Error](err); ok {
		out = *e
	} else {
		out = *api.Errorf(api.CodeInternal, "the daemon met an internal error")
		switch {
		case errors.Is(err, context.Canceled):
			out = *api.Errorf(api.CodeCanceled, "the caller went away")
		case errors.Is(err, context.DeadlineExceeded):
			out = *api.Errorf(api.CodeTimeout, "the daemon gave up waiting")
		}
	}
	if out.Code == api.CodeInternal {
		// A fault's message may name paths of the host.
		if !r.caller.Operator {
			kept := out
			out = *api.Errorf(api.CodeInternal, "the daemon met an internal error")
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
func withoutLog(out *api.Error, err error) {
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
	Error *api.Error `json:"error"`
}

func writeError(w http.ResponseWriter, e *api.Error, code int) {
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
