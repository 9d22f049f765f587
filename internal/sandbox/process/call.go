package process

import (
	"context"
	"errors"
	"time"

	"github.com/cloche-dev/cloche/api"
)

// now is the time that goes on record.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// CanceledCall is the error of a call whose context has ended with err.
func CanceledCall(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return api.Errorf(api.CodeTimeout, "the time for the call is up: %w", err)
	}
	return api.Errorf(api.CodeCanceled, "the call was given up: %w", err)
}

// silenced is err, or why ctx, which is of attended, ended.
func silenced(ctx context.Context, err error) error {
	if e, ok := errors.AsType[*api.Error](context.Cause(ctx)); ok && err != nil {
		return e
	}
	return err
}
