//go:build linux

package lifecycle_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"

	"github.com/cloche-dev/cloche/api"
	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/cgroup"
	"github.com/cloche-dev/cloche/internal/engine/lifecycle"
)

// TestDrive: each cause of a failure has its code, and the end of a sandbox ends the call.
func TestDrive(t *testing.T) {
	alive := func() bool { return false }
	for _, c := range []struct {
		name string
		dead func() bool
		err  error
		want api.Code
	}{
		{"done", alive, nil, ""},
		{"dead before", func() bool { return true }, nil, api.CodeSandboxLost},
		{"classified", alive, api.Errorf(api.CodeUnsupported, "no"), api.CodeUnsupported},
		{"no freezer", alive, cgroup.ErrNoFreezer, api.CodeUnsupported},
		{"late", alive, context.DeadlineExceeded, api.CodeTimeout},
		{"canceled", alive, context.Canceled, api.CodeCanceled},
		{"other", alive, os.ErrInvalid, api.CodeInternal},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := newInstance(t)
			err := i.Drive(t.Context(), "pause", c.dead, func(context.Context) error { return c.err })
			if code(err) != c.want {
				t.Errorf("got %v, want code %q", err, c.want)
			}
		})
	}
	t.Run("ends with the sandbox", func(t *testing.T) {
		i, end := newInstance(t), make(chan struct{})
		err := i.Drive(t.Context(), "pause", alive, func(ctx context.Context) error {
			close(end)
			<-ctx.Done()
			i.Expect(true)
			return ctx.Err()
		}, make(chan struct{}), end)
		if code(err) != api.CodeSandboxLost {
			t.Errorf("got %v, want that the sandbox is lost", err)
		}
	})
}

// TestCloseErrorNamesWhatIsLeft: the daemon tells its callers which resource remains.
func TestCloseErrorNamesWhatIsLeft(t *testing.T) {
	err := newInstance(t).CloseError(api.ResourceCgroup, "remove its cgroup", os.ErrPermission)
	left, ok := errors.AsType[*engine.CloseError](err)
	if !ok || left.Kind != api.ResourceCgroup || !errors.Is(err, os.ErrPermission) {
		t.Errorf("got %v", err)
	}
	if e, ok := errors.AsType[*api.Error](err); !ok || !e.Retryable {
		t.Errorf("%v cannot be retried", err)
	}
}

func newInstance(t *testing.T) *lifecycle.Instance {
	t.Helper()
	i := &lifecycle.Instance{}
	i.Init("sb-1", []byte("{}"), &cgroup.Group{}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	return i
}

func code(err error) api.Code {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Code
	}
	return ""
}
