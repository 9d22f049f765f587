package localdir

import (
	"errors"
	"io/fs"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/terminal"
)

// Error classifies an error about a local file. Its message has the action and the name,
// which may be any bytes.
func Error(verb, name string, err error) error {
	e := api.Errorf(api.CodeInvalid, "%s %s: %w", verb, terminal.Printable(name), withoutPath(err))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Hint = "the path is on this machine; check its spelling"
	case errors.Is(err, fs.ErrPermission):
		e.Hint = "the user who runs this command does not have the permission"
	}
	return e
}

// withoutPath is the cause without its path, which the message has already.
func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
