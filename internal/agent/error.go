package agent

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxText bounds each text that the agent puts into an error.
const maxText = 8 << 10

// classify gives an error of this end its code.
func classify(err error) error {
	if _, ok := errors.AsType[*cloche.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return cloche.Errorf(cloche.CodeCanceled, "the call was given up; the process, if there is one, goes on: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return cloche.Errorf(cloche.CodeTimeout, "the agent did not answer in the time given: %w", err)
	case errors.Is(err, wire.ErrFrame):
		return cloche.Errorf(cloche.CodeInternal, "the agent broke the protocol: %w", err)
	default:
		e := cloche.Errorf(cloche.CodeUnavailable, "the connection to the agent ended: %w", err)
		e.Retryable = true
		return e
	}
}

// decodeFailure is the error that the agent reported, cut to what an agent may
// say: it knows nothing of policy rules, request ids or retries.
func decodeFailure(payload []byte) error {
	e, err := wire.Decode[cloche.Error](payload)
	if err != nil {
		return classify(err)
	}
	if !slices.Contains(cloche.Codes(), e.Code) || e.Code == cloche.CodeDenied || e.Code == cloche.CodeUnauthenticated {
		e.Code = cloche.CodeInternal
	}
	out := cloche.Errorf(e.Code, "%s", bounded(e.Message))
	out.Field, out.Hint = bounded(e.Field), bounded(e.Hint)
	return out
}

// bounded makes a text of the agent's short and valid.
func bounded(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
