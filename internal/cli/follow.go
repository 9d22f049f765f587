package cli

import (
	"context"
	"errors"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/cli/command"
)

func asErrorOrNil(err error) *api.Error {
	if err == nil {
		return nil
	}
	return command.AsError(err)
}

// untilInterrupted returns the result of a command that runs until it is interrupted. An interrupt
// is its normal end and needs no message.
func untilInterrupted(ctx context.Context, follows bool, err error) error {
	if follows && ctx.Err() != nil && (errors.Is(err, context.Canceled) || api.CodeOf(err) == api.CodeCanceled) {
		return command.StatusError(command.ExitSignal + api.SignalNumber("INT"))
	}
	return err
}
