package command

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
)

// AsErrorOrNil is AsError, and nil for nil.
func AsErrorOrNil(err error) *api.Error {
	if err == nil {
		return nil
	}
	return AsError(err)
}

// UntilInterrupted returns the result of a command that runs until it is interrupted. An interrupt
// is its normal end and needs no message.
func UntilInterrupted(ctx context.Context, follows bool, err error) error {
	if follows && ctx.Err() != nil && (errors.Is(err, context.Canceled) || api.CodeOf(err) == api.CodeCanceled) {
		return StatusError(ExitSignal + api.SignalNumber("INT"))
	}
	return err
}
