package langbot

import (
	"context"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/cloche-dev/cloche/api"
)

// class is what a failure is called on the wire: the client finds its exception by
// this word.
type class string

// The classes.
const (
	classBox             class = "BoxError"
	classValidation      class = "BoxValidationError"
	classUnavailable     class = "BoxBackendUnavailableError"
	classRuntime         class = "BoxRuntimeUnavailableError"
	classAdmission       class = "BoxAdmissionError"
	classReadiness       class = "BoxReadinessError"
	classCapacity        class = "BoxCapacityExceededError"
	classConflict        class = "BoxSessionConflictError"
	classNotFound        class = "BoxSessionNotFoundError"
	classProcessConflict class = "BoxManagedProcessConflictError"
	classProcessNotFound class = "BoxManagedProcessNotFoundError"
	classPermission      class = "PermissionError"
	classEnvelope        class = "ValidationError"
	classKey             class = "KeyError"
	classValue           class = "ValueError"
)

// maxMessage bounds the text of an error in characters.
const maxMessage = 4096

// failure is an error as the client gets it. The class stands first, since the client
// takes the first class that it finds anywhere in the text.
type failure struct {
	class class
	text  string
	cause error
}

func (f *failure) Error() string { return string(f.class) + ": " + f.text }

func (f *failure) Unwrap() error { return f.cause }

func failed(c class, format string, args ...any) *failure {
	err := fmt.Errorf(format, args...)
	return &failure{class: c, text: err.Error(), cause: errors.Unwrap(err)}
}

// stale is matched by its words on the other side.
func stale() *failure { return failed(classPermission, "Stale Box placement generation") }

// classOf is the one table from our codes to their classes.
func classOf(code api.Code) class {
	switch code {
	case api.CodeInvalid, api.CodeDenied, api.CodeTooLarge, api.CodeUnsupported, api.CodeQuota:
		return classValidation
	case api.CodeUnavailable, api.CodeDisabled:
		return classUnavailable
	case api.CodeNoCapacity, api.CodeTooMany:
		return classCapacity
	case api.CodeExists, api.CodeConflict:
		return classConflict
	case api.CodeNotFound, api.CodeSandboxLost:
		return classNotFound
	case api.CodeUnauthenticated:
		return classPermission
	default:
		return classBox
	}
}

// clean is err as a client gets it: without the values of secrets in its text.
func (s *Server) clean(err error) error {
	if s.o.Redact == nil || err == nil {
		return err
	}
	if f, ok := errors.AsType[*failure](err); ok {
		return &failure{class: f.class, text: s.o.Redact(f.text), cause: f.cause}
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		out := *e
		out.Message, out.Hint = s.o.Redact(e.Message), s.o.Redact(e.Hint)
		return &out
	}
	return err
}

// wireError is the text of any error for the client.
func wireError(err error) string {
	var text string
	var f *failure
	var e *api.Error
	switch {
	case errors.As(err, &f):
		text = f.Error()
	case errors.As(err, &e):
		text = string(classOf(e.Code)) + ": " + e.Error()
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		text = string(classBox) + ": the action was cancelled"
	default:
		text = string(classBox) + ": an internal error; the runtime's log has it"
	}
	return cutText(text, maxMessage)
}

// cutText keeps so many characters and says that there were more.
func cutText(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "... [truncated]"
}
