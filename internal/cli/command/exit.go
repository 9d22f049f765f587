package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// The exit statuses that are Cloche's own; every other one is the command's.
const (
	exitOK       = 0
	ExitTimedOut = 124 // the command ran into its timeout
	ExitFailed   = 125 // Cloche itself failed: the command's outcome is not known, or it never ran
	ExitRefused  = 126 // policy refused, or the command is not executable
	exitNotFound = 127 // the command does not exist inside
	ExitSignal   = 128 // plus the number of the signal that ended the command
)

// exitStatuses maps codes to exit statuses; a code that is not in it is
// exitFailed.
var exitStatuses = map[api.Code]int{
	api.CodeDenied:          ExitRefused,
	api.CodeNotExecutable:   ExitRefused,
	api.CodeCommandNotFound: exitNotFound,
}

// StatusError ends the process with a status and says nothing: what there was
// to say has been said.
type StatusError int

// Error implements error.
func (s StatusError) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// ExitStatus is the status for an error that a verb returned.
func ExitStatus(err error) int {
	if err == nil {
		return exitOK
	}
	if s, ok := errors.AsType[StatusError](err); ok {
		return int(s)
	}
	if errors.Is(err, context.Canceled) {
		return ExitSignal + 2
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		if status, ok := exitStatuses[e.Code]; ok {
			return status
		}
	}
	return ExitFailed
}

// AsError gives every error the one shape that is printed. Errors that carry no
// code are this program's own: a flag that does not parse, a local file that
// cannot be read. They hold no secret, so their text is shown.
func AsError(err error) *api.Error {
	if errors.Is(err, context.Canceled) {
		return api.Errorf(api.CodeCanceled, "interrupted")
	}
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e
	}
	return api.Errorf(api.CodeInternal, "%w", err)
}

// PrintError writes one error for a person, or as one JSON line of the same
// shape that the API answers with.
func PrintError(w io.Writer, err error, asJSON bool) {
	if err == nil {
		return
	}
	if _, silent := errors.AsType[StatusError](err); silent {
		return
	}
	e := AsError(err)
	if asJSON {
		line, merr := json.Marshal(map[string]*api.Error{"error": e})
		if merr == nil {
			fmt.Fprintf(w, "%s\n", line)
			return
		}
	}
	fmt.Fprintf(w, "cloche: %s\n", terminal.Printable(e.Message))
	if e.Hint != "" {
		fmt.Fprintf(w, "hint: %s\n", terminal.Printable(e.Hint))
	}
	if e.Rule != "" {
		fmt.Fprintf(w, "rule: %s\n", terminal.Printable(e.Rule))
	}
	if e.Code == api.CodeInternal && e.RequestID != "" {
		fmt.Fprintf(w, "request: %s\n", terminal.Printable(e.RequestID))
	}
}
