//go:build linux

package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
	"github.com/cloche-dev/cloche/internal/engine/pidfd"
)

// TestTakeSteps: in order, to the first that fails, and none for a caller that has gone.
func TestTakeSteps(t *testing.T) {
	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	var did []string
	step := func(name string, err error, then func()) lifecycle.Step {
		return lifecycle.Step{Name: name, Do: func(context.Context) error {
			did = append(did, name)
			then()
			return err
		}}
	}
	nothing := func() {}
	for _, c := range []struct {
		steps  []lifecycle.Step
		did    []string
		failed string
		err    error
	}{
		{nil, nil, "", nil},
		{[]lifecycle.Step{step("a", nil, nothing), step("b", nil, nothing)}, []string{"a", "b"}, "", nil},
		{[]lifecycle.Step{step("a", nil, nothing), step("b", broken, nothing), step("c", nil, nothing)}, []string{"a", "b"}, "b", broken},
		{[]lifecycle.Step{step("a", nil, cancel), step("b", nil, nothing)}, []string{"a"}, "b", context.Canceled},
	} {
		did = nil
		failed, err := lifecycle.TakeSteps(ctx, log, "sb-1", c.steps)
		if !slices.Equal(did, c.did) || failed != c.failed || !errors.Is(err, c.err) {
			t.Errorf("did %q, %q failed with %v; want %q, %q with %v", did, failed, err, c.did, c.failed, c.err)
		}
	}
}

// TestUndo: what was made last goes first.
func TestUndo(t *testing.T) {
	var u lifecycle.Undo
	var undone []int
	u.Run()
	for i := range 3 {
		u.Add(func() { undone = append(undone, i) })
	}
	u.Run()
	if want := []int{2, 1, 0}; !slices.Equal(undone, want) {
		t.Errorf("undone %v, want %v", undone, want)
	}
}

// TestCreateError: a code for each reason that is no engine's own, with its cause.
func TestCreateError(t *testing.T) {
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	refused := api.Errorf(api.CodeUnsupported, "not here")
	for _, c := range []struct {
		ctx       context.Context
		step      string
		err       error
		code      api.Code
		retryable bool
	}{
		{t.Context(), "boot", fmt.Errorf("boot: %w", refused), api.CodeUnsupported, false},
		{t.Context(), "boot", context.Canceled, api.CodeCanceled, false},
		{gone, "boot", io.ErrUnexpectedEOF, api.CodeCanceled, false},
		{t.Context(), "boot", fmt.Errorf("wait: %w", context.DeadlineExceeded), api.CodeTimeout, true},
		{t.Context(), lifecycle.StepRecord, &os.PathError{Op: "open", Err: unix.EEXIST}, api.CodeExists, false},
		{t.Context(), "boot", os.NewSyscallError("clone", unix.EAGAIN), api.CodeNoCapacity, true},
		{t.Context(), "boot", &os.PathError{Op: "write", Err: unix.ENOSPC}, api.CodeNoCapacity, true},
		{t.Context(), "boot", fmt.Errorf("start: %w", pidfd.ErrClosed), api.CodeUnavailable, false},
	} {
		err := lifecycle.CreateError(c.ctx, "sb-1", c.step, c.err)
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Code != c.code || e.Retryable != c.retryable || e != refused && !errors.Is(err, c.err) {
			t.Errorf("%s: %v is %#v, want %s, retryable %v", c.step, c.err, err, c.code, c.retryable)
		}
	}
	for _, err := range []error{io.ErrUnexpectedEOF, &os.PathError{Op: "open", Err: unix.EEXIST}, unix.EPERM} {
		if got := lifecycle.CreateError(t.Context(), "sb-1", "boot", err); got != nil {
			t.Errorf("%v is %v, want an error that the engine has to classify", err, got)
		}
	}
}
