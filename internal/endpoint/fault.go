package endpoint

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
)

// The codes of what the endpoint itself says.
const (
	codeMalformed    = "malformed_request"
	codeMisdirected  = "misdirected"
	codeOrigin       = "foreign_origin"
	codeMethod       = "method_denied"
	codePath         = "path_denied"
	codeCapability   = "capability_denied"
	codeUnreadable   = "body_unreadable"
	codeHeaders      = "header_too_large"
	codeBody         = "body_too_large"
	codeResponse     = "response_too_large"
	codeBusy         = "concurrency_limit"
	codeRate         = "rate_limit"
	codeDraining     = "draining"
	codeUnattached   = "no_attachment"
	codeUnreachable  = "target_unreachable"
	codeTargetDenied = "target_denied"
	codeReset        = "target_reset"
	codeProtocol     = "target_protocol"
	codeConnectTime  = "connect_timeout"
	codeHeaderTime   = "header_timeout"
	codeIdleTime     = "idle_timeout"
	codeSecret       = "secret_unavailable"
	codeClient       = "client_gone"
	codeReplay       = "replay_mismatch"
	codeFull         = "recording_full"
)

// fault is what a code is told as.
type fault struct {
	status  int
	message string
	// retry is how many seconds to wait before the same may go well; 0 is that it will not.
	retry int
	// condition is what it says of the endpoint; empty is nothing.
	condition string
}

// faultOf has one row for each code.
func faultOf(code string) fault {
	switch code {
	case codeMalformed:
		return fault{400, "the request is not one that an endpoint takes", 0, ""}
	case codeMisdirected:
		return fault{421, "the Host of the request is not this endpoint's", 0, ""}
	case codeOrigin:
		return fault{403, "pages of other origins may not use this endpoint", 0, ""}
	case codeMethod:
		return fault{405, "this endpoint does not take the method", 0, ""}
	case codePath:
		return fault{403, "this endpoint does not take the path", 0, ""}
	case codeCapability:
		return fault{403, "a sandbox may not have the provider do this for it", 0, ""}
	case codeUnreadable:
		return fault{400, "the body of the request is not plain JSON in UTF-8 that all read alike, which this endpoint looks into", 0, ""}
	case codeHeaders:
		return fault{431, "the request has too many headers", 0, ""}
	case codeBody:
		return fault{413, "the body of the request is too large", 0, ""}
	case codeResponse:
		return fault{502, "the body of the response is too large", 0, ""}
	case codeBusy:
		return fault{429, "this endpoint has as many requests as it takes", 1, ""}
	case codeRate:
		return fault{429, "this endpoint has had as many requests as it takes in a time", 1, ""}
	case codeDraining:
		return fault{503, "this endpoint is being taken away", 0, ""}
	case codeUnattached:
		return fault{503, "no client is attached to serve this endpoint", 1, "no client is attached to serve it"}
	case codeUnreachable:
		return fault{502, "the service behind this endpoint cannot be reached", 1, "its target cannot be reached"}
	case codeTargetDenied:
		return fault{502, "the service behind this endpoint has no address that is allowed", 0, "its target has no address that is allowed"}
	case codeReset:
		return fault{502, "the service behind this endpoint broke the connection off", 1, "its target broke a connection off"}
	case codeProtocol:
		return fault{502, "the service behind this endpoint changed to a protocol that was not asked for", 0, ""}
	case codeConnectTime:
		return fault{504, "the service behind this endpoint did not take the connection in time", 1, "its target does not take connections in time"}
	case codeHeaderTime:
		return fault{504, "the service behind this endpoint did not begin to answer in time", 1, "its target does not answer in time"}
	case codeIdleTime:
		return fault{504, "nothing moved for too long", 1, ""}
	case codeReplay:
		return fault{422, "the recording does not answer this", 0, ""}
	case codeSecret:
		return fault{500, "a header that the host adds is not available", 0, "one of its secrets is not available"}
	}
	return fault{502, "the request failed", 0, ""}
}

// codedError is an error with its code.
type codedError struct {
	code string
	err  error
}

func (e *codedError) Error() string { return e.code + ": " + e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }

// codeOf says what went wrong with an exchange. ctx is the exchange's.
func codeOf(ctx context.Context, err error) string {
	if c, ok := errors.AsType[*codedError](context.Cause(ctx)); ok {
		return c.code
	}
	if errors.Is(context.Cause(ctx), errDetached) {
		return codeDraining
	}
	if c, ok := errors.AsType[*codedError](err); ok {
		return c.code
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return codeBody
	}
	if ctx.Err() != nil {
		return codeClient
	}
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		return codeHeaderTime
	}
	return codeReset
}

// answer writes what the endpoint itself says, with what there is to say of this request.
// It holds nothing of the host's.
func answer(w http.ResponseWriter, code, detail, id string) int {
	f := faultOf(code)
	data := bodyOf(code, detail, id)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Bridge-Error", code)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	if f.retry > 0 && h.Get("Retry-After") == "" {
		h.Set("Retry-After", strconv.Itoa(f.retry))
	}
	w.WriteHeader(f.status)
	_, _ = w.Write(data) // a client that has gone does not read it
	return f.status
}

// bodyOf is the body of an answer of the endpoint's own.
func bodyOf(code, detail, id string) []byte {
	f := faultOf(code)
	var body struct {
		Error struct {
			Type      string `json:"type"`
			Code      string `json:"code"`
			Message   string `json:"message"`
			Retryable bool   `json:"retryable"`
			RequestID string `json:"request_id"`
		} `json:"error"`
	}
	body.Error.Type, body.Error.Code, body.Error.Message = "bridge_error", code, f.message
	if detail != "" {
		body.Error.Message += ": " + detail
	}
	body.Error.Retryable, body.Error.RequestID = f.retry > 0, id
	data, err := json.Marshal(body)
	if err != nil { // strings always encode
		data = nil
	}
	return data
}
