package envd

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"connectrpc.com/connect"

	"github.com/cloche-dev/cloche/api"
)

// codeOf is the one table from Cloche's codes to Connect's.
func codeOf(code api.Code) connect.Code {
	switch code {
	case api.CodeInvalid, api.CodeTooLarge, api.CodeCommandNotFound, api.CodeNotExecutable:
		return connect.CodeInvalidArgument
	case api.CodeUnauthenticated:
		return connect.CodeUnauthenticated
	case api.CodeDenied, api.CodeDisabled:
		return connect.CodePermissionDenied
	case api.CodeNotFound:
		return connect.CodeNotFound
	case api.CodeExists:
		return connect.CodeAlreadyExists
	case api.CodeConflict:
		return connect.CodeAborted
	case api.CodeState:
		return connect.CodeFailedPrecondition
	case api.CodeQuota, api.CodeNoCapacity, api.CodeTooMany:
		return connect.CodeResourceExhausted
	case api.CodeUnsupported:
		return connect.CodeUnimplemented
	case api.CodeUnavailable, api.CodeSandboxLost:
		return connect.CodeUnavailable
	case api.CodeTimeout:
		return connect.CodeDeadlineExceeded
	case api.CodeCanceled:
		return connect.CodeCanceled
	case api.CodeInternal:
	}
	return connect.CodeInternal
}

// rpcError is an error of core as a client gets it.
func rpcError(err error) *connect.Error {
	if ce, ok := errors.AsType[*connect.Error](err); ok {
		return ce
	}
	if ae, ok := errors.AsType[*api.Error](err); ok {
		code := codeOf(ae.Code)
		if ae.Code == api.CodeNotFound && ae.Errno == "" {
			code = connect.CodeUnavailable // the sandbox, not a file in it
		}
		if ae.Errno == "EACCES" || ae.Errno == "EPERM" {
			code = connect.CodePermissionDenied
		}
		return connect.NewError(code, errors.New(ae.Error()))
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the time that the client set is over"))
	case errors.Is(err, context.Canceled):
		return connect.NewError(connect.CodeCanceled, errors.New("the client ended the request"))
	}
	return connect.NewError(connect.CodeInternal, errors.New("internal error"))
}

// statusOf is the status of an answer of /files to an error of core.
func statusOf(err error) int {
	ae, ok := errors.AsType[*api.Error](err)
	if !ok {
		return http.StatusInternalServerError
	}
	switch ae.Errno {
	case "ENOSPC", "EDQUOT":
		return http.StatusInsufficientStorage
	case "EACCES", "EPERM", "EROFS":
		return http.StatusForbidden
	}
	switch ae.Code {
	case api.CodeInvalid, api.CodeExists, api.CodeState, api.CodeUnsupported:
		return http.StatusBadRequest
	case api.CodeUnauthenticated:
		return http.StatusUnauthorized
	case api.CodeDenied, api.CodeDisabled:
		return http.StatusForbidden
	case api.CodeNotFound:
		if ae.Errno == "" {
			return http.StatusBadGateway // the sandbox, not a file in it
		}
		return http.StatusNotFound
	case api.CodeConflict:
		return http.StatusConflict
	case api.CodeTooLarge:
		return http.StatusRequestEntityTooLarge
	case api.CodeQuota:
		return http.StatusInsufficientStorage
	case api.CodeTooMany, api.CodeNoCapacity:
		return http.StatusTooManyRequests
	case api.CodeUnavailable, api.CodeSandboxLost:
		return http.StatusBadGateway
	case api.CodeTimeout:
		return http.StatusGatewayTimeout
	case api.CodeCommandNotFound, api.CodeNotExecutable, api.CodeCanceled, api.CodeInternal:
	}
	return http.StatusInternalServerError
}

// textOf is the text of an error of core as a client gets it.
func textOf(err error) string {
	if ae, ok := errors.AsType[*api.Error](err); ok {
		return ae.Error()
	}
	return "internal error"
}

// errnoOf returns the kernel's name for an error of a file, or "".
func errnoOf(err error) string {
	if ae, ok := errors.AsType[*api.Error](err); ok {
		return ae.Errno
	}
	return ""
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		status, b = http.StatusInternalServerError, []byte(`{"code":500,"message":"internal error"}`)
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(b)
}

// writeFailure answers an error outside of Connect, with the body that E2B's clients compare.
func writeFailure(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]any{"code": status, "message": message})
}
