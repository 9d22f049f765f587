package docker

import (
	"context"
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/cloche-dev/cloche/api"
)

// classify makes an api.Error of the error of a call. The daemon's text may name paths of its host, so
// it is the cause and not the message.
func (e *Engine) classify(ctx context.Context, what string, err error) error {
	if err == nil {
		return nil
	}
	if ours, ok := errors.AsType[*api.Error](err); ok {
		return ours
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return api.Errorf(api.CodeCanceled, "%s: canceled", what).WithCause(err)
	case ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		out := api.Errorf(api.CodeTimeout, "%s: not done in time", what).WithCause(err)
		out.Retryable = true
		return out
	case unreachable(err):
		out := api.Errorf(api.CodeUnavailable, "%s: the %s daemon does not answer", what, e.opts.Name).
			WithHint("start it; `cloche doctor` says how").WithCause(err)
		out.Retryable = true
		return out
	case errdefs.IsConflict(err):
		return api.Errorf(api.CodeState, "%s: the %s daemon refuses it in this state", what, e.opts.Name).WithCause(err)
	}
	return api.Errorf(api.CodeInternal, "%s: the %s engine could not do it", what, e.opts.Name).WithCause(err)
}

// unreachable says that a call did not come to its end for want of a daemon: it was
// not there, or it went away.
func unreachable(err error) bool {
	if client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err) {
		return true
	}
	_, ok := errors.AsType[*net.OpError](err)
	return ok || broken(err)
}

// broken says that a connection ended in the middle.
func broken(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
