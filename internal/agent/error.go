package agent

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/agent/wire"
)

// maxText bounds each text that the agent puts into an error.
const maxText = 8 << 10

// classify gives an error of this end its code.
func classify(err error) error {
	if _, ok := errors.AsType[*api.Error](err); ok {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return api.Errorf(api.CodeCanceled, "the call was given up; the process, if there is one, goes on: %w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return api.Errorf(api.CodeTimeout, "the agent did not answer in the time given: %w", err)
	case errors.Is(err, wire.ErrFrame):
		return api.Errorf(api.CodeInternal, "the agent broke the protocol: %w", err)
	default:
		e := api.Errorf(api.CodeUnavailable, "the connection to the agent ended: %w", err)
		e.Retryable = true
		return e
	}
}

// isPathRule is true for the name of a rule on a path of a mount, which an agent
// puts in force and which only concerns its own sandbox: "mounts[0].rules[1]".
func isPathRule(s string) bool {
	mount, rule, ok := strings.Cut(s, ".rules")
	if rest, numbered := strings.CutPrefix(mount, "mounts"); numbered {
		ok = ok && isIndex(rest)
	} else {
		ok = ok && mount == "workspace"
	}
	return ok && isIndex(rule)
}

// isIndex is true for a small number in brackets.
func isIndex(s string) bool {
	if len(s) < 3 || len(s) > 6 || s[0] != '[' || s[len(s)-1] != ']' {
		return false
	}
	return !strings.ContainsFunc(s[1:len(s)-1], func(r rune) bool { return r < '0' || r > '9' })
}

// isPlaceRule is true for what the request itself sets, where it says within what it is.
func isPlaceRule(s string) bool { return s == api.RuleWithin || s == api.RuleReadWithin }

// isErrno is true for what looks like the kernel's name of an error.
func isErrno(s string) bool {
	if len(s) < 2 || len(s) > 16 || s[0] != 'E' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool { return (r < 'A' || r > 'Z') && (r < '0' || r > '9') })
}

// decodeFailure is the error that the agent reported, cut to what an agent may
// say: it knows nothing of request ids, and of policy only the rules on paths
// that it was given.
func decodeFailure(payload []byte) error {
	e, err := wire.Decode[api.Error](payload)
	if err != nil {
		return classify(err)
	}
	return saneError(e)
}

// saneError keeps of a failure what an agent may say.
func saneError(e api.Error) error {
	denied := e.Code == api.CodeDenied && (isPathRule(e.Rule) || isPlaceRule(e.Rule))
	if !slices.Contains(api.Codes(), e.Code) || e.Code == api.CodeDenied && !denied || e.Code == api.CodeUnauthenticated {
		e.Code = api.CodeInternal
	}
	out := api.Errorf(e.Code, "%s", bounded(e.Message))
	if denied {
		out.Rule = e.Rule
	}
	out.Field, out.Hint = bounded(e.Field), bounded(e.Hint)
	if isErrno(e.Errno) {
		out.Errno = e.Errno
	}
	if e.Code == api.CodeNoCapacity {
		out.Retryable, out.RetryAfterMS = true, noCapacityRetry.Milliseconds()
	}
	return out
}

// bounded makes a text of the agent's short and valid.
func bounded(s string) string {
	if len(s) > maxText {
		s = s[:maxText] + "…"
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
