//go:build linux

package gvisor_test

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cloche-dev/cloche/internal/engine"
	"github.com/cloche-dev/cloche/internal/engine/enginetest"
	"github.com/cloche-dev/cloche/internal/engine/gvisor"
)

// ahead is an engine that has a booted sandbox ready before each create.
type ahead struct {
	*gvisor.Engine
	t     testing.TB
	taken *atomic.Int64
}

// newAhead makes one. A booted sandbox that cannot be used although it is of the kind fails the test, unless the create is expected to fail.
func newAhead(t testing.TB, stateDir string, taken *atomic.Int64) engine.Engine {
	t.Helper()
	e, err := gvisor.New(gvisor.Options{StateDir: stateDir, Warm: true, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return &ahead{Engine: e, t: t, taken: taken}
}

// Create implements engine.Engine.
func (a *ahead) Create(ctx context.Context, p engine.Plan) (engine.Instance, error) {
	i, err, fits := a.CreateBooted(ctx, p)
	if fits && err == nil {
		if !strings.Contains(string(i.State()), `"container":"booted-`) {
			a.t.Errorf("the sandbox that was ready could not be used: %s", i.State())
		}
		a.taken.Add(1)
	}
	return i, err
}

// TestEngineWithBooted: a sandbox that was booted before a request for it is like any other, and survives its daemon.
func TestEngineWithBooted(t *testing.T) {
	usable(t)
	var taken atomic.Int64
	enginetest.Run(t, enginetest.Setup{
		New:    func(t testing.TB, dir string) engine.Engine { return newAhead(t, dir, &taken) },
		Images: enginetest.BuildImages(t, t.TempDir()), Kill: kill, Isolates: true, OwnKernel: true, Survives: true,
	})
	t.Logf("%d sandboxes were ready", taken.Load())
	if taken.Load() < 20 && !t.Failed() {
		t.Errorf("only %d sandboxes were made of one that was ready", taken.Load())
	}
}
